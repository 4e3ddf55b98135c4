"""Mixture of experts: contracts of routing and of the experts' arithmetic.

Router weights are multiplied in by `swiglu`, nowhere else. Expert ids of -1 mean "no expert".
Choices of a token are ordered by ascending logical expert id, and sums over choices run in that
order: this is what makes a result independent of where the experts live.
"""

from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels.checks import expect

Implementation = Callable[..., Any]


def route(
    implementation: Implementation,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    forced: torch.Tensor | None,
    *,
    top_k: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses experts by `sqrt(softplus(logit))` plus a bias that only selects.

    Args:
        logits: [rows, experts] float32.
        bias: [experts] float32, or None.
        forced: [rows, top_k] int64 expert ids that replace the choice (hash routing), ascending in
            each row, or None.
        top_k: Experts per token.
        scale: The weights of a token sum to this.

    Returns:
        ids [rows, top_k] int64, ascending in each row; weights [rows, top_k] float32. Ties in the
        selection go to the lower id.
    """
    expect(logits, "logits", (None, None), dtype=torch.float32)
    if bias is not None:
        expect(bias, "bias", (logits.shape[1],))
    if forced is not None:
        expect(forced, "forced", (logits.shape[0], top_k), dtype=torch.int64)
    result: tuple[torch.Tensor, torch.Tensor] = implementation(logits, bias, forced, top_k, scale)
    return result


def swiglu(
    implementation: Implementation,
    gate_up: torch.Tensor,
    row_weight: torch.Tensor | None,
    clamp: float,
) -> torch.Tensor:
    """Returns `silu(min(g, clamp)) * clip(u, -clamp, clamp) * weight`.

    Args:
        gate_up: [..., 2 * width]; the gate half comes first.
        row_weight: [...] float32 router weights, or None for 1.
        clamp: Limit of both halves.

    Returns:
        [..., width].
    """
    if row_weight is not None:
        expect(row_weight, "row_weight", tuple(gate_up.shape[:-1]))
    result: torch.Tensor = implementation(gate_up, row_weight, clamp)
    return result


def grouped_experts(
    implementation: Implementation,
    rows: torch.Tensor,
    row_weight: torch.Tensor,
    slots: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    clamp: float,
    min_rows: int,
) -> torch.Tensor:
    """Runs each row through its expert: gate and up, clamped SwiGLU times weight, down.

    Args:
        rows: [rows, d] float32, sorted by slot.
        row_weight: [rows] float32.
        slots: [rows] int64 local expert slots, ascending.
        gate_up: [local slots, d, 2 * width].
        down: [local slots, width, d].
        clamp: SwiGLU limit.
        min_rows: Every product is made with at least this many rows (batch invariance).

    Returns:
        [rows, d] float32, row order kept.
    """
    expect(rows, "rows", (None, gate_up.shape[1]))
    expect(row_weight, "row_weight", (rows.shape[0],))
    expect(slots, "slots", (rows.shape[0],), dtype=torch.int64)
    expect(down, "down", (gate_up.shape[0], gate_up.shape[2] // 2, gate_up.shape[1]))
    result: torch.Tensor = implementation(rows, row_weight, slots, gate_up, down, clamp, min_rows)
    return result
