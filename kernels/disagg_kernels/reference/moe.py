"""Reference of `disagg_kernels.moe`."""

import numpy as np
import torch
import torch.nn.functional as functional

from disagg_kernels.reference.dense import VECTOR_ELEMENTS, batched_linear, linear, softplus


def route(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    forced: torch.Tensor | None,
    top_k: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `disagg_kernels.moe.route`."""
    scores = softplus(logits).sqrt_()
    if forced is not None:
        ids = forced
    else:
        ranking = scores.clone() if bias is None else scores + bias
        picks = []
        for _ in range(top_k):
            # argmax names the first of equal scores, as the contract asks; topk leaves it open.
            picks.append(ranking.argmax(1, keepdim=True))
            ranking.scatter_(1, picks[-1], float("-inf"))
        if top_k == 2:
            ids = torch.cat([torch.minimum(*picks), torch.maximum(*picks)], 1)
        else:
            ids = torch.cat(picks, 1).sort(1).values
    weights = scores.gather(1, ids)
    # The floor keeps a row finite whose scores all underflow; it changes no other.
    weights.div_(weights.sum(-1, keepdim=True).add_(1e-20)).mul_(scale)
    return ids, weights


def swiglu(gate_up: torch.Tensor, row_weight: torch.Tensor | None, clamp: float) -> torch.Tensor:
    """See `disagg_kernels.moe.swiglu`."""
    width = gate_up.shape[-1] // 2
    gate = gate_up[..., :width].clamp(max=clamp)
    if width % VECTOR_ELEMENTS == 0:
        gate = functional.silu(gate)
    else:
        # Row counts are free here, so the vectorised form would round some rows differently.
        gate.div_(torch.exp(-gate).add_(1.0))
    gate.mul_(gate_up[..., width:].clamp(-clamp, clamp))
    if row_weight is not None:
        gate.mul_(row_weight.unsqueeze(-1))
    return gate


def grouped_experts(
    rows: torch.Tensor,
    row_weight: torch.Tensor,
    slots: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    clamp: float,
    min_rows: int,
) -> torch.Tensor:
    """See `disagg_kernels.moe.grouped_experts`."""
    count = rows.shape[0]
    if count == 0:
        return torch.empty_like(rows)
    num_slots, width = gate_up.shape[0], rows.shape[1]
    # Index arithmetic on a few numbers is cheaper outside torch.
    slot_of_row = slots.numpy()
    counts = np.bincount(slot_of_row, minlength=num_slots)
    capacity = max(int(counts.max()), min_rows)
    if num_slots * capacity > 4 * count + num_slots * min_rows:
        return _expert_by_expert(rows, row_weight, counts.tolist(), gate_up, down, clamp, min_rows)
    # Every expert gets the same number of rows: one batched product instead of many small ones.
    starts = counts.cumsum() - counts
    # Places without a row take row 0; their results are not read.
    places = np.arange(count) + (np.arange(num_slots) * capacity - starts)[slot_of_row]
    sources = np.zeros(num_slots * capacity, dtype=np.int64)
    sources[places] = np.arange(count)
    source = torch.from_numpy(sources)
    padded = rows.index_select(0, source)
    weights = row_weight.index_select(0, source)
    hidden = batched_linear(padded.view(num_slots, capacity, width), gate_up)
    hidden = swiglu(hidden, weights.view(num_slots, capacity), clamp)
    return batched_linear(hidden, down).view(-1, width).index_select(0, torch.from_numpy(places))


def _expert_by_expert(
    rows: torch.Tensor,
    row_weight: torch.Tensor,
    counts: list[int],
    gate_up: torch.Tensor,
    down: torch.Tensor,
    clamp: float,
    min_rows: int,
) -> torch.Tensor:
    """Same result for skewed loads, where padding all experts to the largest would cost more."""
    out = torch.empty_like(rows)
    begin = 0
    for slot, size in enumerate(counts):
        if size == 0:
            continue
        part = rows[begin : begin + size]
        weight = row_weight[begin : begin + size]
        if size < min_rows:
            part = functional.pad(part, (0, 0, 0, min_rows - size))
            weight = functional.pad(weight, (0, min_rows - size))
        hidden = swiglu(linear(part, gate_up[slot]), weight, clamp)
        out[begin : begin + size] = linear(hidden, down[slot])[:size]
        begin += size
    return out
