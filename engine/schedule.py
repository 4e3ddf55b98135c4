"""What a scheduler says: what it wants of the next step, and its decisions for one. Data, pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.block_manager import BlockManager
from engine.config import CacheSize
from engine.plan import SequenceStep
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What this rank brings to the step vote; reading it changes nothing.

    Args:
        is_unfinished: some sequence is not paused and has more to compute than the step in flight.
        wants_prefill: a prefill row could run now: slot, pages and budget are there.
        has_decode_rows: a decode row could run now.
        num_decode_rows: rows of a decode step; fewer only if a page is missing, a state cannot be
            moved in, or a sequence ends with the step in flight. Never more, see
            `Scheduler.schedule`.
        num_prefill_rows: likewise, of a prefill step.
    """

    is_unfinished: bool
    wants_prefill: bool
    has_decode_rows: bool
    num_decode_rows: int
    num_prefill_rows: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """A sequence that lost its memory in this step, and where its state still lies."""

    sequence: Sequence
    block_table: tuple[int, ...]
    state_slot: int
    num_computed: int


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence and how many of its missing tokens this step computes."""

    sequence: Sequence
    num_tokens: int


@dataclass(slots=True)
class Schedule:
    """Decisions for one step, to be carried out in the order of the fields.

    Args:
        preempted: whose state must be copied out.
        admitted: whose state must be copied in.
        rows: what to compute.
    """

    preempted: list[Preemption] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return sum(row.num_tokens for row in self.rows)


def step_of(row: Row, blocks: BlockManager, cache: CacheSize) -> SequenceStep:
    """Writes a row as the step of a plan; its sequence owns pages for all it computes."""
    sequence, start = row.sequence, row.sequence.num_computed
    end = start + row.num_tokens
    is_replaying = sequence.is_replaying
    return SequenceStep(
        request_id=sequence.request_id,
        token_ids=tuple(sequence.tokens[start:end]),
        start=start,
        block_table=blocks.block_table(sequence.request_id)[: cache.pages_for(end)],
        state_slot=blocks.state_slot(sequence.request_id),
        sample=end == sequence.num_tokens,
        stored_tokens=sequence.replay_end if is_replaying else 0,
        window_start=sequence.replay_start if is_replaying else 0,
    )
