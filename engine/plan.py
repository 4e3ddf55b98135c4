"""The contract between the scheduler and the runner: what one step computes.

A plan names tokens, positions, pages and slots; it knows no tensor and no model, and importing
this module loads no torch. The scheduler writes plans, a `Runner` executes them.

Invariants of a plan:
- every `SequenceStep` has at least one token and a block table that covers [0, start + num_tokens);
- page 0 and slot 0 (`SCRATCH_PAGE`, `SCRATCH_SLOT`) appear in no table: they take the writes of
  placeholder and padding rows;
- a replayed token (see `SequenceStep.stored_tokens`) is not sampled;
- a placeholder plan has no sequences, and the runner still performs every collective of the step
  kind.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from engine.handoff import SequenceImage

SCRATCH_PAGE = 0
SCRATCH_SLOT = 0


class StepKind(enum.Enum):
    """Kind of forward step, agreed by all ranks of a lockstep group before anything runs."""

    PREFILL = "prefill"
    DECODE = "decode"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStep:
    """One sequence's share of a step: compute KV for positions [start, start + num_tokens).

    Args:
        request_id: whose tokens these are; for messages and statistics only.
        token_ids: the tokens to compute now, at least one.
        start: absolute position of `token_ids[0]`; the state is that after so many tokens.
        block_table: page ids covering positions [0, start + num_tokens), in order.
        state_slot: the slot of windows and compressor tails, valid at `start` tokens.
        sample: True when the logits of the last token are wanted.
        stored_tokens: entries of this many first tokens, whole blocks, are in the pages and are not
            written; above `start` only in a window replay (see `engine.handoff`).
        window_start: first position whose window row exists; above 0 only in a window replay.
    """

    request_id: str
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    state_slot: int
    sample: bool
    stored_tokens: int = 0
    window_start: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """Tokens in KV after this step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedStep:
    """A step as all ranks of its lockstep group know it before it begins.

    Args:
        kind: PREFILL or DECODE.
        step: its number, counted from 1 on all ranks alike; votes that ran nothing do not count.
        vote: the reduced vector it follows from.
    """

    kind: StepKind
    step: int
    vote: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward step of one rank.

    Args:
        kind: PREFILL or DECODE; never NONE (a NONE decision runs nothing).
        step: number of the step in its lockstep group, equal on all ranks.
        sequences: the rows, in an order the results keep.
        is_placeholder: True when there are no sequences and the step only serves the peers.
        group_rows: rows each attention group of the domain announced in the vote, at least as many
            as it brings; empty where no collective's size depends on them.
    """

    kind: StepKind
    step: int
    sequences: tuple[SequenceStep, ...]
    is_placeholder: bool
    group_rows: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass, over all sequences."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def num_samples(self) -> int:
        """Rows of `StepResult.logits` this plan asks for."""
        return sum(1 for sequence in self.sequences if sequence.sample)


def placeholder_plan(kind: StepKind, step: int, group_rows: tuple[int, ...] = ()) -> StepPlan:
    """Returns the plan of a rank that has nothing to do in a step its peers run."""
    return StepPlan(kind=kind, step=step, sequences=(), is_placeholder=True, group_rows=group_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step gives back.

    Args:
        logits: [num_samples, vocab_size] float32, one row per sequence with `sample`, in plan
            order; [0, vocab_size] when none asks.
    """

    logits: torch.Tensor


class Runner(Protocol):
    """Executes plans and moves sequence state in and out. Called on the engine thread only.

    Exceptions from `run` are fatal for the whole lockstep group (its collectives may be half
    done); exceptions from the other methods, which contain no collectives, fail the one request
    they were called for.
    """

    def run(self, plan: StepPlan) -> StepResult:
        """Runs one step with all collectives of its kind, also for a placeholder. Once per step."""
        ...

    def export_image(
        self, block_table: Sequence[int], state_slot: int, num_tokens: int, *, blocks: bool = True
    ) -> SequenceImage:
        """Copies a sequence's state after `num_tokens` tokens out; the bytes own their memory.

        With `blocks` False the image carries no block payloads (its `blocks` is empty), only
        `partial` and `state`. Twice gives equal bytes.
        """
        ...

    def export_blocks(self, page_ids: Sequence[int]) -> list[bytes]:
        """Copies full blocks out, one payload per page, each `block_bytes` long."""
        ...

    def export_state(self, state_slot: int, num_tokens: int) -> bytes:
        """Copies windows and compressor tails out.

        Valid only while the sequence has exactly `num_tokens` in KV.
        """
        ...

    def import_image(
        self, image: SequenceImage, block_table: Sequence[int], state_slot: int
    ) -> None:
        """Writes an image into pages and slot, so that they equal the exported ones bit by bit.

        The slot is overwritten as a whole; `block_table` covers at least `image.num_tokens`.

        Raises:
            ValueError: a part has the wrong length for this layout.
        """
        ...

    def reset_slot(self, state_slot: int) -> None:
        """Empties a slot for a sequence that starts at position 0. Twice is harmless."""
        ...
