"""Attention over gathered rows: contract. One function serves prefill and decode."""

from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels.checks import expect

Implementation = Callable[..., Any]

# The first columns of every gathered key list belong to the sink: column 0 is a zero key whose
# score is the learned sink (its value is zero, so it only enlarges the softmax denominator).
SINK_COLUMNS = 16


def sparse_attention(
    implementation: Implementation,
    query: torch.Tensor,
    source: torch.Tensor,
    rows: torch.Tensor,
    mask: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attends from each query row to its own list of rows of `source`, used as keys and values.

    Args:
        query: [rows, heads, width] float32.
        source: [source rows, width] float32: window rows and compressed entries.
        rows: [rows, keys] int64 rows of `source`; `keys` is a multiple of 16. The first
            `SINK_COLUMNS` columns must name a row of zeros.
        mask: [rows, keys] float32, 0 where a key counts and -inf where not; 0 in column 0.
        sink: [heads, at least keys] float32: the learned sink in column 0, zeros elsewhere.
        scale: Factor of the scores.

    Returns:
        [rows, heads, width] float32.
    """
    tokens, heads, width = query.shape
    expect(source, "source", (None, width))
    expect(rows, "rows", (tokens, None), dtype=torch.int64)
    expect(mask, "mask", (tokens, rows.shape[1]))
    expect(sink, "sink", (heads, None))
    if rows.shape[1] % SINK_COLUMNS:
        raise ValueError(f"rows: {rows.shape[1]} keys, wanted a multiple of {SINK_COLUMNS}")
    if sink.shape[1] < rows.shape[1]:
        raise ValueError(f"sink: {sink.shape[1]} columns, wanted at least {rows.shape[1]}")
    result: torch.Tensor = implementation(query, source, rows, mask, sink, scale)
    return result
