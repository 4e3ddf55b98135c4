"""Pooling of token groups into compressed entries: contract (model notes, section 6.1)."""

from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels.checks import expect

Implementation = Callable[..., Any]


def compress(
    implementation: Implementation,
    rows: torch.Tensor,
    *,
    width: int,
    overlap: bool,
    first: torch.Tensor | None,
) -> torch.Tensor:
    """Returns one pooled vector per group: a softmax over the group's rows, channel by channel.

    Args:
        rows: [groups, tokens, 2 * c * width] float32, keys then scores (position bias included).
            With overlap c = 2 and the tokens are those of the previous group and of this one: the
            first half contributes its first `width` channels, the second half its last.
        width: Width of an entry.
        overlap: Whether groups overlap (CSA) or not (HCA).
        first: [groups] bool, True where no previous group exists; None without overlap.

    Returns:
        [groups, width] float32, before the norm.
    """
    channels = 4 * width if overlap else 2 * width
    expect(rows, "rows", (None, None, channels), dtype=torch.float32)
    if overlap:
        if first is None:
            raise ValueError("first: None, wanted a [groups] bool tensor with overlap")
        expect(first, "first", (rows.shape[0],), dtype=torch.bool)
    result: torch.Tensor = implementation(rows, width, overlap, first)
    return result
