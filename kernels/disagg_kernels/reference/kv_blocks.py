"""Reference of `disagg_kernels.kv_blocks`."""

import torch


def gather_rows(source: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """See `disagg_kernels.kv_blocks.gather_rows`."""
    return source.index_select(0, rows.flatten()).view(*rows.shape, source.shape[1])
