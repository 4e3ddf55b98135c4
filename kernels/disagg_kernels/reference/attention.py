"""Reference of `disagg_kernels.attention`."""

import torch

# Sums over keys are cut here, always alike: see `disagg_kernels.reference.dense.INNER_TILE`.
KEY_TILE = 256


def sparse_attention(
    query: torch.Tensor,
    source: torch.Tensor,
    rows: torch.Tensor,
    mask: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """See `disagg_kernels.attention.sparse_attention`."""
    tokens, num_keys = rows.shape
    width = source.shape[1]
    keys = source.index_select(0, rows.flatten()).view(tokens, num_keys, width)
    bias = mask.unsqueeze(1) + sink[:, :num_keys]
    probs = torch.softmax(torch.baddbmm(bias, query, keys.mT, alpha=scale), -1)
    if num_keys <= KEY_TILE:
        return torch.bmm(probs, keys)
    out = torch.bmm(probs[:, :, :KEY_TILE], keys[:, :KEY_TILE])
    for begin in range(KEY_TILE, num_keys, KEY_TILE):
        end = min(begin + KEY_TILE, num_keys)
        out += torch.bmm(probs[:, :, begin:end], keys[:, begin:end])
    return out
