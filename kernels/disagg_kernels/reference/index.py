"""Reference of `disagg_kernels.index`."""

import torch


def index_logits(
    query: torch.Tensor,
    weight: torch.Tensor,
    keys: torch.Tensor,
    spans: tuple[tuple[int, int, int], ...],
    visible: torch.Tensor,
) -> torch.Tensor:
    """See `disagg_kernels.index.index_logits`."""
    rows, heads, width = query.shape
    num_keys = keys.shape[1]
    scores = query.new_full((rows, num_keys), float("-inf"))
    if len(spans) == keys.shape[0] and all(end == begin + 1 for _, begin, end in spans):
        # Decode: one row per sequence, all at once. Rows beyond the sequences are padding.
        dots = torch.bmm(query[: len(spans)], keys.mT).relu_()
        scores[: len(spans)] = (dots * weight[: len(spans)].unsqueeze(-1)).sum(1)
    else:
        for sequence, begin, end in spans:
            dots = torch.mm(query[begin:end].reshape(-1, width), keys[sequence].mT).relu_()
            dots = dots.view(end - begin, heads, num_keys)
            scores[begin:end] = (dots * weight[begin:end].unsqueeze(-1)).sum(1)
    hidden = torch.arange(num_keys) >= visible.unsqueeze(-1)
    return scores.masked_fill_(hidden, float("-inf"))


def select_topk(logits: torch.Tensor, k: int) -> torch.Tensor:
    """See `disagg_kernels.index.select_topk`."""
    num_keys = logits.shape[1]
    k_here = min(k, num_keys)
    order = logits.sort(dim=-1, descending=True, stable=True)
    picks = order.indices[:, :k_here]
    picks = picks.masked_fill(order.values[:, :k_here] == float("-inf"), num_keys)
    picks = picks.sort(dim=-1).values
    picks = picks.masked_fill(picks == num_keys, -1)
    if k_here < k:
        picks = torch.nn.functional.pad(picks, (0, k - k_here), value=-1)
    return picks
