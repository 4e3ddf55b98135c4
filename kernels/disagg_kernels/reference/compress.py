"""Reference of `disagg_kernels.compress`."""

import torch


def compress(
    rows: torch.Tensor, width: int, overlap: bool, first: torch.Tensor | None
) -> torch.Tensor:
    """See `disagg_kernels.compress.compress`."""
    if not overlap:
        keys, scores = rows[..., :width], rows[..., width:]
        return (torch.softmax(scores, 1) * keys).sum(1)
    half = rows.shape[1] // 2
    keys, scores = rows[..., : 2 * width], rows[..., 2 * width :]
    keys = torch.cat([keys[:, :half, :width], keys[:, half:, width:]], 1)
    previous = scores[:, :half, :width]
    assert first is not None
    previous = previous.masked_fill(first[:, None, None], float("-inf"))
    scores = torch.cat([previous, scores[:, half:, width:]], 1)
    return (torch.softmax(scores, 1) * keys).sum(1)
