"""How many (query, entry) pairs attention visits: sums in closed form.

Position t (from 1) sees `floor(t / ratio)` entries, at most `cap`. With a `group` above 1 entries
are visited in whole groups: `ceil(t / (ratio * group))` groups, at most `cap` of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """One way a layer reads what it keeps of earlier tokens.

    Args:
        flops: FP8-equivalent FLOPs of one pair.
        entry_bytes: Bytes of one entry.
        ratio: Tokens of an entry.
        cap: Most entries (groups, with `group` above 1) that a query visits; None for all.
        group: Entries that are visited together.
        is_window: Starts again at the replay cut, see `Layers`.
    """

    flops: int
    entry_bytes: int
    ratio: int = 1
    cap: int | None = None
    group: int = 1
    is_window: bool = False

    def pairs(self, start: int, end: int) -> int:
        """Pairs of the queries at positions (start, end]; 0 for an empty range."""
        if end <= start:
            return 0
        return self.group * (self._up_to(end) - self._up_to(start))

    def entries(self, position: int) -> int:
        """Entries that the query at this position visits."""
        if self.group == 1:
            found = position // self.ratio
        else:
            found = -(-position // (self.ratio * self.group))
        return self.group * (found if self.cap is None else min(found, self.cap))

    def _up_to(self, end: int) -> int:
        """Entries or groups visited by the positions 1..end."""
        if self.group == 1:
            return _sum_floor(end, self.ratio, self.cap)
        width = self.ratio * self.group
        # ceil(t / width) = floor((t + width - 1) / width): the same sum, shifted.
        capped_at = end if self.cap is None else min(end, width * self.cap)
        total = _sum_floor(capped_at + width - 1, width, None)
        return total + (end - capped_at) * (self.cap or 0)


def _sum_floor(end: int, ratio: int, cap: int | None) -> int:
    """Sum over t = 1..end of min(floor(t / ratio), cap)."""
    capped_at = end if cap is None else min(end, ratio * cap)
    whole = capped_at // ratio
    total = whole * (capped_at + 1) - ratio * whole * (whole + 1) // 2
    return total + (end - capped_at) * (cap or 0)
