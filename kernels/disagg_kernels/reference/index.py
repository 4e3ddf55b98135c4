"""Reference of `disagg_kernels.index`."""

import torch
import torch.nn.functional as functional


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
    if len(spans) == keys.shape[0] and all(end == begin + 1 for _, begin, end in spans):
        # Decode: one row per sequence, all at once. Rows beyond the sequences are padding.
        count = len(spans)
        dots = torch.bmm(query[:count], keys.mT).relu_()
        scores = dots.mul_(weight[:count].unsqueeze(-1)).sum(1)
        if count < rows:
            scores = functional.pad(scores, (0, 0, 0, rows - count), value=float("-inf"))
    else:
        scores = query.new_full((rows, num_keys), float("-inf"))
        for sequence, begin, end in spans:
            dots = torch.mm(query[begin:end].reshape(-1, width), keys[sequence].mT).relu_()
            dots = dots.view(end - begin, heads, num_keys)
            scores[begin:end] = dots.mul_(weight[begin:end].unsqueeze(-1)).sum(1)
    hidden = torch.arange(num_keys) >= visible.unsqueeze(-1)
    return scores.masked_fill_(hidden, float("-inf"))


def select_topk(logits: torch.Tensor, k: int, columns: int | None = None) -> torch.Tensor:
    """See `disagg_kernels.index.select_topk`."""
    columns = k if columns is None else columns
    rows, num_keys = logits.shape
    if rows and k < num_keys:
        best = logits.topk(k + 1, dim=-1)
        least, next_best = best.values[:, k - 1], best.values[:, k]
        # Only a tie at the cut leaves open which of two equal scores was taken.
        if not bool(((least == next_best) & (next_best > float("-inf"))).any()):
            picks = best.indices[:, :k].masked_fill(best.values[:, :k] == float("-inf"), num_keys)
            picks = picks.sort(dim=-1).values
            picks = picks.masked_fill_(picks == num_keys, -1)
            return functional.pad(picks, (0, columns - k), value=-1) if columns > k else picks
    return _select_with_ties(logits, k, columns)


def _select_with_ties(logits: torch.Tensor, k: int, columns: int) -> torch.Tensor:
    rows, num_keys = logits.shape
    picked = logits > float("-inf")
    if k < num_keys:
        least = logits.topk(k, dim=-1, sorted=True).values[:, -1:]
        above = logits > least
        level = (logits == least) & picked
        room = k - above.sum(-1, keepdim=True)
        picked = above | (level & (level.cumsum(-1) <= room))
    row, key = picked.nonzero(as_tuple=True)
    counts = picked.sum(-1)
    place = torch.arange(row.shape[0]) - (counts.cumsum(0) - counts)[row]
    picks = torch.full((rows, columns), -1, dtype=torch.int64)
    picks[row, place] = key
    return picks
