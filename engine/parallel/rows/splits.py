"""How n rows are cut over t ranks, and how counts decide the padding of a row gather. Pure.

One rule everywhere: the first n mod t chunks have one row more. (The other common rule, chunks of
ceil(n / t), gives different offsets for the same sizes; mixing them swaps rows silently.)
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Chunks of `num_rows` rows over `num_ranks` ranks."""

    num_rows: int
    num_ranks: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each chunk."""
        rows, more = divmod(self.num_rows, self.num_ranks)
        return tuple(rows + (rank < more) for rank in range(self.num_ranks))

    @property
    def offsets(self) -> tuple[int, ...]:
        """First row of each chunk."""
        sizes = self.sizes
        return tuple(sum(sizes[:rank]) for rank in range(self.num_ranks))

    @property
    def padded_chunk(self) -> int:
        """Rows every chunk is padded to, so that equal parts can be gathered."""
        return -(-self.num_rows // self.num_ranks)

    @property
    def gathered_rows(self) -> int:
        """Rows of the gathered buffer, padding included."""
        return self.padded_chunk * self.num_ranks

    def slice_of(self, rank: int) -> slice:
        """Rows of one chunk."""
        begin = self.offsets[rank]
        return slice(begin, begin + self.sizes[rank])


class PaddingMode(enum.Enum):
    """Size of the buffer of a row gather: the sum of all counts, or the largest for each group."""

    SUM = "SUM"
    MAX = "MAX"


def padding_mode(counts: Sequence[int], *, has_extend: bool) -> PaddingMode:
    """Chooses by agreed values only, so that all ranks choose alike.

    Args:
        counts: rows of each attention group.
        has_extend: whether any of them prefills.
    """
    if has_extend and len(counts) > 1:
        return PaddingMode.SUM
    is_even = 2 * sum(counts) >= max(counts) * len(counts)
    return PaddingMode.MAX if is_even else PaddingMode.SUM
