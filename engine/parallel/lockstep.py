"""Step agreement: who runs the next step, and of which kind. Pure: vectors in, decisions out.

Every rank of a lockstep group reduces one vector per step with MAX and feeds the result to its
own `LockstepState`. The state changes by reduced values only, so it is equal on all ranks without
being sent. Knows no transport (votes.py), no scheduler and no clock.

Invariants:
- `decide` is a function of the reduced vectors seen so far and of nothing else.
- A NORMAL engine runs at least `attempt_interval` decode steps between two prefill steps while
  somebody has decode rows, and a rank that wants a prefill waits at most `any_interval` decode
  steps.
- A failed vote leaves the counter going; only a prefill step sets it to 0.
- Ranks without work of the agreed kind run its placeholder, with every collective.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from engine.plan import StepKind

IntArray = npt.NDArray[np.int64]

NUM_FIELDS: Final = 9
DEFAULT_ATTEMPT_INTERVAL: Final = 4
DEFAULT_ANY_INTERVAL: Final = 16


class EngineKind(enum.Enum):
    """Which step kinds an engine runs."""

    NORMAL = "normal"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteVector:
    """What one rank says before a step.

    Args:
        unfinished: it holds work of any kind (f0); without any, the group goes idle.
        wants_prefill: a prefill is admissible now: KV, slot and budget were checked (f1, f2).
        decode_rows: most rows it would decode (f3 and f5).
        prefill_rows: most rows it would prefill (f6).
        needs_eager: it cannot replay a captured graph (f4).
        epoch: the control epoch it asks for (f7, f8), such as a pause, a swap or the end.
    """

    unfinished: bool
    wants_prefill: bool = False
    decode_rows: int = 0
    prefill_rows: int = 0
    needs_eager: bool = False
    epoch: int = 0

    def to_array(self) -> IntArray:
        """The nine fields f0..f8, [9] int64, ready for a MAX reduction."""
        wants = int(self.wants_prefill)
        return np.array(
            (
                int(self.unfinished),
                wants,
                1 - wants,
                int(self.decode_rows > 0),
                int(self.needs_eager),
                self.decode_rows,
                self.prefill_rows,
                self.epoch,
                -self.epoch,
            ),
            dtype=np.int64,
        )


def announced_rows(vectors: IntArray, kind: StepKind) -> tuple[int, ...]:
    """Rows each rank announced for a step of a kind, given the vectors of all ranks."""
    field = 6 if kind is StepKind.PREFILL else 5
    return tuple(vectors[:, field].tolist())


class VotePoint(enum.Enum):
    """Which rule of the prefill vote was evaluated."""

    ANY = "ANY"
    ALL = "ALL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What all ranks do next.

    Args:
        step_kind: PREFILL, DECODE, or NONE when no forward step runs.
        idle: nobody has work: sleep until the doorbell rings.
        counter: decode steps since the last prefill, before this step.
        point: the vote that was evaluated, if any, and whether it `passed`.
        reason: why, for logs and tests.
        stalled_rounds: how many decisions in a row found work that cannot run; the caller's
            watchdog acts on it, and sleeps a little meanwhile.
        can_replay_graph: every rank may replay a captured graph.
        max_decode_rows: largest decode row count over the ranks; `max_prefill_rows` likewise.
        agreed_epoch: the control epoch when all ranks ask for the same one, else None.
    """

    step_kind: StepKind
    idle: bool
    counter: int
    point: VotePoint | None
    passed: bool
    reason: str
    stalled_rounds: int
    can_replay_graph: bool
    max_decode_rows: int
    max_prefill_rows: int
    agreed_epoch: int | None


class LockstepState:
    """The state machine of one rank, equal on all ranks of its group.

    Args:
        kind: NORMAL votes; PREFILL and DECODE never do.
        attempt_interval: decode steps between two ALL votes, A >= 2.
        any_interval: decode steps after which one rank's want suffices, Y >= A.
        running: start in RUN (True) or IDLE.
        counter: decode steps since the last prefill.

    Raises:
        ValueError: intervals out of order.
    """

    __slots__ = (
        "any_interval",
        "attempt_interval",
        "counter",
        "kind",
        "running",
        "stalled_rounds",
    )

    def __init__(
        self,
        kind: EngineKind,
        *,
        attempt_interval: int = DEFAULT_ATTEMPT_INTERVAL,
        any_interval: int = DEFAULT_ANY_INTERVAL,
        running: bool = False,
        counter: int = 0,
    ) -> None:
        """Checks the intervals and starts the machine."""
        if attempt_interval < 2:
            raise ValueError(
                f"attempt_interval {attempt_interval} is below 2: decode would never progress "
                f"between prefills; raise it to 2 or more"
            )
        if any_interval < attempt_interval:
            raise ValueError(
                f"any_interval {any_interval} is below attempt_interval {attempt_interval}: raise "
                f"any_interval to at least {attempt_interval} or lower attempt_interval"
            )
        self.kind = kind
        self.attempt_interval = attempt_interval
        self.any_interval = any_interval
        self.running = running
        self.counter = counter
        self.stalled_rounds = 0

    def decide(self, reduced: IntArray | Sequence[int]) -> Decision:
        """Advances the machine by one reduced vector (f0..f8, MAX over the group)."""
        fields = [int(field) for field in reduced]
        unfinished, any_wants, somebody_refuses, has_decode = fields[:4]
        if not unfinished:
            self.running = False
            self.stalled_rounds = 0
            return self._decision(fields, StepKind.NONE, "idle", idle=True)
        if not self.running:
            self.running = True
            self.counter = self.attempt_interval
        if self.kind is EngineKind.PREFILL:
            runnable = StepKind.PREFILL if any_wants else StepKind.NONE
        elif self.kind is EngineKind.DECODE:
            runnable = StepKind.DECODE if has_decode else StepKind.NONE
        elif any_wants or has_decode:
            self.stalled_rounds = 0
            return self._vote(fields, bool(any_wants), not somebody_refuses, bool(has_decode))
        else:
            runnable = StepKind.NONE
        if runnable is StepKind.NONE:
            self.stalled_rounds += 1
            return self._decision(fields, StepKind.NONE, "nothing can run")
        self.stalled_rounds = 0
        return self._decision(fields, runnable, f"{self.kind.value} engine")

    def _vote(
        self, fields: list[int], any_wants: bool, all_want: bool, has_decode: bool
    ) -> Decision:
        if not has_decode:
            decision = self._decision(fields, StepKind.PREFILL, "idle shortcut")
            self.counter = 0
            return decision
        if self.counter >= self.any_interval and any_wants:
            decision = self._decision(fields, StepKind.PREFILL, "vote", VotePoint.ANY, passed=True)
            self.counter = 0
            return decision
        if self.counter > 0 and self.counter % self.attempt_interval == 0:
            kind = StepKind.PREFILL if all_want else StepKind.DECODE
            decision = self._decision(fields, kind, "vote", VotePoint.ALL, passed=all_want)
            self.counter = 0 if all_want else self.counter + 1
            return decision
        decision = self._decision(fields, StepKind.DECODE, "between votes")
        self.counter += 1
        return decision

    def _decision(
        self,
        fields: list[int],
        step_kind: StepKind,
        reason: str,
        point: VotePoint | None = None,
        *,
        passed: bool = False,
        idle: bool = False,
    ) -> Decision:
        _, _, _, _, needs_eager, decode_rows, prefill_rows, epoch, negative_epoch = fields
        return Decision(
            step_kind=step_kind,
            idle=idle,
            counter=self.counter,
            point=point,
            passed=passed,
            reason=reason,
            stalled_rounds=self.stalled_rounds,
            can_replay_graph=not needs_eager,
            max_decode_rows=decode_rows,
            max_prefill_rows=prefill_rows,
            agreed_epoch=epoch if epoch == -negative_epoch else None,
        )


class VotePort(Protocol):
    """How the ranks of a lockstep group reduce their vectors, and how they sleep.

    The step loop's thread calls `reduce_max`, or `gather`, once per step on every rank, also when
    idle, and
    `wait_for_work` once after each idle (or nothing-can-run) decision, even if it knows of work:
    that is how its peers learn that it goes on. It looks for work between the wait and the vote.
    `ring` is called from any thread, after new work has become visible to the step loop; twice is
    harmless.
    """

    def reduce_max(self, vector: IntArray) -> IntArray:
        """MAX over the group of [9] int64 vectors; a collective. The result is the caller's.

        Raises:
            GroupError: a rank is late or lost.
        """
        ...

    def gather(self, vector: IntArray) -> IntArray:
        """The vectors of all ranks, [ranks, 9] int64 in their order; instead of `reduce_max`.

        For layouts whose collectives take the rows of each rank; all ranks call the same one.

        Raises:
            GroupError: a rank is late or lost.
        """
        ...

    def wait_for_work(self, timeout_s: float) -> None:
        """Sleeps until somebody rings or has slept `timeout_s`; returns early for no reason too.

        No rank sleeps while another has gone on to the next vote, and a ring between this rank's
        last look for work and this call makes the call return at once.

        Raises:
            GroupError: the group was given up.
        """
        ...

    def ring(self) -> None:
        """Wakes every rank of the group out of `wait_for_work`."""
        ...
