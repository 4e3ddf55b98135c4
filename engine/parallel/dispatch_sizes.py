"""How large the buffers of an expert dispatch are, and whether one kernel may do it all. Pure.

Devices want the rows of each slot to start at a multiple of an alignment. Sizes and the choice of
the fused kernel depend on constants that all ranks share, so no rank needs another's counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Formats of (activations, expert weights) that a fused kernel exists for.
FUSED_FORMATS: Final = frozenset({("fp8", "fp4"), ("fp8", "fp8"), ("bf16", "bf16")})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedLayout:
    """Rows of a rank's slots, one slot after the other, each starting aligned.

    Args:
        counts: rows of each slot.
        alignment: what every start is a multiple of.
    """

    counts: tuple[int, ...]
    alignment: int

    @property
    def starts(self) -> tuple[int, ...]:
        """First row of each slot."""
        return tuple(end - count for end, count in zip(self.ends, self.counts, strict=True))

    @property
    def ends(self) -> tuple[int, ...]:
        """Row after the last one of each slot."""
        ends: list[int] = []
        for count in self.counts:
            ends.append((_aligned(ends[-1], self.alignment) if ends else 0) + count)
        return tuple(ends)

    @property
    def num_rows(self) -> int:
        """Rows of the buffer, padding included."""
        return _aligned(self.ends[-1], self.alignment) if self.counts else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchBounds:
    """Largest buffers of one rank, whatever is dispatched.

    Args:
        num_ranks, max_tokens, top_k: ranks of the group, rows a rank sends at most, choices.
        slots_per_rank: slots of a rank.
        alignment: of expanded rows.
    """

    num_ranks: int
    max_tokens: int
    top_k: int
    slots_per_rank: int
    alignment: int

    @property
    def plain_rows(self) -> int:
        """Each row at most once: all rows of all ranks."""
        return self.num_ranks * self.max_tokens

    @property
    def expanded_rows(self) -> int:
        """Each row once per choice, with the padding of every slot."""
        padding = self.slots_per_rank * (self.alignment - 1)
        return _aligned(self.plain_rows * self.top_k + padding, self.alignment)


def max_rows_per_rank(
    *, is_prefill: bool, max_num_batched_tokens: int, cp: int, max_num_seqs: int, num_drafts: int
) -> int:
    """Rows a rank hands to dispatch at most: a constant of the kind of step."""
    if is_prefill:
        return max_num_batched_tokens // cp
    return max_num_seqs * (1 + num_drafts)


def can_fuse(*, activations: str, weights: str, ep: int, scale_up_ranks: int) -> bool:
    """Whether dispatch, experts and combine may be one kernel; equal on all ranks.

    Args:
        activations, weights: formats, such as "fp8" and "fp4".
        ep: ranks that share the experts.
        scale_up_ranks: ranks whose memory a kernel can reach.
    """
    return (activations, weights) in FUSED_FORMATS and (ep == 1 or ep <= scale_up_ranks)


def layout_of_ids(
    ids: Sequence[int], slots_per_rank: int, rank: int, alignment: int
) -> ExpandedLayout:
    """Layout of the rows that some choices bring to a rank.

    Args:
        ids: slot of every choice of every rank; -1 for none.
        slots_per_rank: slots of a rank.
        rank: whose slots.
        alignment: of its buffer.
    """
    first = rank * slots_per_rank
    counts = [0] * slots_per_rank
    for slot in ids:
        if first <= slot < first + slots_per_rank:
            counts[slot - first] += 1
    return ExpandedLayout(counts=tuple(counts), alignment=alignment)


def _aligned(rows: int, alignment: int) -> int:
    return -(-rows // alignment) * alignment
