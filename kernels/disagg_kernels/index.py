"""The lightning indexer: contracts of scoring and of selection (model notes, 6.2 and 7.2)."""

from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels.checks import expect

Implementation = Callable[..., Any]

# Key counts are padded to this, so that a score does not depend on how many keys are scored along.
KEY_TILE = 64


def index_logits(
    implementation: Implementation,
    query: torch.Tensor,
    weight: torch.Tensor,
    keys: torch.Tensor,
    spans: tuple[tuple[int, int, int], ...],
    visible: torch.Tensor,
) -> torch.Tensor:
    """Returns `sum_h weight_h * relu(query_h . key)` for the visible keys of each row.

    Args:
        query: [rows, heads, width].
        weight: [rows, heads] float32.
        keys: [sequences, keys, width]; the number of keys is a multiple of `KEY_TILE`.
        spans: Per sequence (sequence, first row, end row), half open; rows outside see nothing.
        visible: [rows] int64, keys each row sees: the first `visible` ones of its sequence.

    Returns:
        [rows, keys] float32, -inf where a key is not visible.
    """
    rows, heads, width = query.shape
    expect(weight, "weight", (rows, heads))
    expect(keys, "keys", (None, None, width))
    expect(visible, "visible", (rows,), dtype=torch.int64)
    if keys.shape[1] % KEY_TILE:
        raise ValueError(f"keys: {keys.shape[1]} keys, wanted a multiple of {KEY_TILE}")
    result: torch.Tensor = implementation(query, weight, keys, spans, visible)
    return result


def select_topk(
    implementation: Implementation, logits: torch.Tensor, k: int, columns: int | None = None
) -> torch.Tensor:
    """Returns the indices of the k largest finite logits of each row, ascending, -1 padded.

    Ties go to the lower index.

    Args:
        logits: [rows, keys] float32; -inf is never picked.
        k: Picks per row.
        columns: Width of the result, at least k; k if not given.

    Returns:
        [rows, columns] int64.
    """
    expect(logits, "logits", (None, None), dtype=torch.float32)
    if columns is not None and columns < k:
        raise ValueError(f"columns: {columns}, wanted at least k = {k}")
    result: torch.Tensor = implementation(logits, k, columns)
    return result
