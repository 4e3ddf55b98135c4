"""Moving KV rows: contract of the gather."""

from collections.abc import Callable
from typing import Any

import torch

from disagg_kernels.checks import expect

Implementation = Callable[..., Any]


def gather_rows(
    implementation: Implementation, source: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Copies rows of `source`.

    Args:
        source: [source rows, width].
        rows: int64 of any shape, all inside `source`.

    Returns:
        [*rows.shape, width].
    """
    expect(source, "source", (None, None))
    if rows.dtype is not torch.int64:
        raise ValueError(f"rows: dtype {rows.dtype}, wanted torch.int64")
    result: torch.Tensor = implementation(source, rows)
    return result
