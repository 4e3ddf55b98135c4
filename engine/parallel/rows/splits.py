"""How n rows are cut over t ranks. Pure.

One rule everywhere: the first n mod t chunks have one row more. (The other common rule, chunks of
ceil(n / t), gives different offsets for the same sizes; mixing them swaps rows silently.)
"""

from __future__ import annotations

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
