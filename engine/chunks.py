"""Which sequences have rows in a step, how many tokens of each, where chunks must end. Pure.

Rules:
- newest tokens come first in the budget of a step, so that those catching up never hold back a
  decoding neighbour;
- a chunk ends at a boundary where the export wants the state, since rings move on;
- with context parallelism a chunk takes its padded length of the budget, so that no rank of the
  engine has more rows than its part of the budget; what is cut short ends at a multiple.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from engine.config import EngineRole
from engine.parallel.rows.budget import charge, chunk_multiple
from engine.plan import StepKind
from engine.request import EngineRequest
from engine.sequence import Sequence


def has_row_in(kind: StepKind, role: EngineRole, sequence: Sequence) -> bool:
    """Says whether a sequence has a row in steps of a kind, by what it misses and the role."""
    if role is EngineRole.NORMAL:
        return sequence.is_prefilling is (kind is StepKind.PREFILL)
    return (kind is StepKind.PREFILL) is (role is EngineRole.PREFILL)


def rows_wanted(
    running: Iterable[Sequence], kind: StepKind, role: EngineRole
) -> list[tuple[Sequence, int]]:
    """Returns the sequences that could have a row in a step now, each with the tokens it misses."""
    is_prefill, is_mixed = kind is StepKind.PREFILL, role is EngineRole.NORMAL
    if not is_mixed and is_prefill is not (role is EngineRole.PREFILL):
        return []
    # As `has_row_in`, which a call for each sequence would make the larger part of a vote.
    return [
        (sequence, sequence.num_missing)
        for sequence in running
        if not (sequence.is_paused or sequence.is_ending)
        and (not is_mixed or sequence.is_prefilling is is_prefill)
    ]


class StepBudget:
    """Tokens that a step still takes.

    Args:
        num_tokens: tokens of a step at most.
        cp: ranks that share the rows of the step.
        num_newest: running sequences of the step that need their newest token only.
    """

    __slots__ = ("_cp", "_multiple", "num_newest", "num_spare")

    def __init__(self, num_tokens: int, *, cp: int, num_newest: int) -> None:
        self._cp = cp
        self._multiple = chunk_multiple(cp)
        single = charge(1, cp)
        # Newest tokens that fit, and what they leave for chunks.
        self.num_newest = min(num_newest, num_tokens // single)
        self.num_spare = num_tokens - self.num_newest * single

    def can_take_chunk(self) -> bool:
        """Says whether a chunk of any sequence could still be taken."""
        return self.num_spare >= self._multiple

    def take_newest(self) -> int:
        """Takes the newest token of a sequence: 1, or 0 when no more fit."""
        num_tokens = min(self.num_newest, 1)
        self.num_newest -= num_tokens
        return num_tokens

    def chunk_of(self, sequence: Sequence) -> int:
        """Returns the tokens of a sequence's next chunk, 0 when none fits; takes nothing."""
        start = sequence.num_computed
        fitting = self.num_spare - self.num_spare % self._multiple
        end = start + min(sequence.num_missing, fitting)
        next_idx = bisect_right(sequence.boundaries, start)
        if next_idx < len(sequence.boundaries):
            end = min(end, sequence.boundaries[next_idx])
        return end - start

    def take_chunk(self, num_tokens: int) -> None:
        """Takes what a chunk of so many tokens costs."""
        self.num_spare -= charge(num_tokens, self._cp)

    def limit_to(self, num_tokens: int) -> None:
        """Leaves so many tokens for chunks at most."""
        self.num_spare = min(self.num_spare, num_tokens)


def state_boundaries(request: EngineRequest, block_tokens: int) -> tuple[int, ...]:
    """Returns where the export of a request wants a state, ascending, behind that of its image."""
    export, image = request.export, request.image
    if export is None:
        return ()
    first = block_tokens
    if image is not None:
        # A state that a replay rebuilds is worth storing, too; before its end none is right.
        is_rebuilt = image.replay_from is not None
        first = (image.num_tokens // block_tokens + (not is_rebuilt)) * block_tokens
    ends = range(first, len(request.token_ids) + 1, block_tokens)
    return tuple(end for end in ends if export.wants_state(end))
