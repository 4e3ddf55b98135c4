"""One rank's part in the votes of its lockstep group.

Before the first vote the ranks compare the settings on which their steps depend: ranks that count
votes by other intervals, or run other kinds of steps, would part ways in the middle of a
collective; here they refuse to start. After that each round brings what this rank wants, reduces
it over the group and decides; how is said in `engine.parallel.lockstep`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from engine.config import EngineRole, EngineSettings, SettingsError
from engine.parallel.lockstep import (
    NUM_FIELDS,
    Decision,
    EngineKind,
    LockstepState,
    VotePort,
    VoteVector,
    announced_rows,
)
from engine.plan import StepKind
from engine.schedule import Demand

_ROLES = list(EngineRole)
_KINDS = {
    EngineRole.NORMAL: EngineKind.NORMAL,
    EngineRole.PREFILL: EngineKind.PREFILL,
    EngineRole.DECODE: EngineKind.DECODE,
}
# The control epoch all ranks ask for when they want to leave the step loop together.
STOP_EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What came of a vote.

    Args:
        decision: equal on all ranks.
        vote: the reduced vector.
        group_rows: rows that each rank announced for the step; empty where votes are not gathered.
        max_rows: those of this rank; None where votes are not gathered.
    """

    decision: Decision
    vote: tuple[int, ...]
    group_rows: tuple[int, ...] = ()
    max_rows: int | None = None


class StepAgreement:
    """Votes for a rank. Engine thread.

    Args:
        settings: role, intervals, and this rank of its group.
        vote: how the ranks of the group agree.
        gathers_rows: votes are gathered, not reduced, and every rank learns what each announced.
    """

    def __init__(self, settings: EngineSettings, vote: VotePort, *, gathers_rows: bool) -> None:
        self._settings = settings
        self.vote = vote
        self.gathers_rows = gathers_rows
        self._lockstep = LockstepState(
            _KINDS[settings.role],
            attempt_interval=settings.prefill_attempt_interval,
            any_interval=settings.prefill_any_attempt_interval,
        )
        self._is_group_checked = settings.num_ranks == 1
        self._last: Agreed | None = None

    @property
    def stalled_rounds(self) -> int:
        """Agreements in a row that found work nobody could run."""
        return self._lockstep.stalled_rounds

    def agree(self, demand: Demand, epoch: int) -> Agreed:
        """Takes part in one vote; waits for all ranks.

        Args:
            demand: what this rank wants.
            epoch: the control epoch it asks for.

        Raises:
            SettingsError: in the first vote, when the ranks do not fit together.
            GroupError: a rank is late or lost.
        """
        if not self._is_group_checked:
            self._is_group_checked = True
            require_equal_settings(self.vote, self._settings)
        vote = VoteVector(
            unfinished=demand.is_unfinished,
            wants_prefill=demand.wants_prefill,
            decode_rows=demand.num_decode_rows if demand.has_decode_rows else 0,
            prefill_rows=demand.num_prefill_rows if demand.wants_prefill else 0,
            epoch=epoch,
        )
        vectors = None
        if self.gathers_rows:
            vectors = self.vote.gather(vote.to_array())
            reduced = vectors.max(axis=0)
        else:
            reduced = self.vote.reduce_max(vote.to_array())
        decision = self._lockstep.decide(reduced)
        agreed = Agreed(decision=decision, vote=tuple(reduced.tolist()))
        kind = decision.step_kind
        if vectors is not None and kind is not StepKind.NONE:
            agreed = replace(
                agreed,
                group_rows=announced_rows(vectors, kind),
                max_rows=vote.prefill_rows if kind is StepKind.PREFILL else vote.decode_rows,
            )
        self._last = agreed
        return agreed

    def describe_last(self) -> str:
        """Says in one phrase what the last vote came to."""
        if self._last is None:
            return "kind none (no vote yet), last vote []"
        decision = self._last.decision
        return (
            f"kind {decision.step_kind.value} ({decision.reason}), last vote "
            f"{list(self._last.vote)}"
        )


def require_equal_settings(vote: VotePort, settings: EngineSettings) -> None:
    """Compares the settings on which steps depend over the ranks; a collective, before any step.

    Raises:
        SettingsError: they differ; names the field, and who has what as far as a vote can tell.
        GroupError: a rank is late or lost.
    """
    values = {
        "role": _ROLES.index(settings.role),
        "prefill_attempt_interval": settings.prefill_attempt_interval,
        "prefill_any_attempt_interval": settings.prefill_any_attempt_interval,
        "late_scheduling": int(settings.late_scheduling),
    }
    vector = np.zeros(NUM_FIELDS, dtype=np.int64)
    for idx, value in enumerate(values.values()):
        vector[2 * idx : 2 * idx + 2] = value, -value
    reduced = vote.reduce_max(vector)
    for idx, name in enumerate(values):
        highest, lowest = int(reduced[2 * idx]), -int(reduced[2 * idx + 1])
        if highest != lowest:
            raise SettingsError(
                f"{name} is {_text(name, values[name])} on rank {settings.rank}, but the "
                f"{settings.num_ranks} ranks of the group have {_text(name, lowest)} to "
                f"{_text(name, highest)}: give all ranks the same"
            )


def _text(name: str, value: int) -> str:
    if name == "role":
        return _ROLES[value].value
    return str(bool(value)).lower() if name == "late_scheduling" else str(value)
