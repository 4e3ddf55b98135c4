"""Longest resumable prefix: pure decisions over existence answers.

    blocks   |###|###|###|###|...|      stored contiguously from the start: num_blocks = 4
    states           S               state stored at the end of block 1:  resume_blocks = 2
    replay           [2, 4)             tokens of these blocks are recomputed before new ones

Advisory only: whoever reads verifies, and a block may be gone by then. `kvstore.resume` compares
this way on with the other one, which rebuilds the state at the end of the stored blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """What of a prompt is stored.

    Attributes:
        num_blocks: Contiguous blocks present from the start.
        resume_blocks: Largest end b <= num_blocks with a boundary state; 0 if there is none.
        replay_tokens: Tokens in [resume_blocks, num_blocks) blocks: stored, to be recomputed.
    """

    num_blocks: int
    resume_blocks: int
    replay_tokens: int


def count_contiguous(present: Sequence[bool]) -> int:
    """How many leading entries are True."""
    return present.index(False) if False in present else len(present)


def candidate_ends(num_blocks: int, batch: int) -> Iterator[range]:
    """Block ends to ask boundary states for, longest first, in batches that double.

    The state of the longest end is by far the likeliest (each prompt's last block has one), so
    the first batch is small and a look-up rarely needs a second round trip.
    """
    end = num_blocks
    while end > 0:
        start = max(0, end - batch)
        yield range(end, start, -1)
        end = start
        batch *= 2


def match_prefix(num_blocks: int, resume_blocks: int, block_tokens: int) -> PrefixMatch:
    """Puts the two counts together and prices the replay in tokens."""
    assert 0 <= resume_blocks <= num_blocks
    return PrefixMatch(
        num_blocks=num_blocks,
        resume_blocks=resume_blocks,
        replay_tokens=(num_blocks - resume_blocks) * block_tokens,
    )
