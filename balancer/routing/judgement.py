"""How the members of one role were judged: candidates with scores, exclusions with causes.

Arrays inside, objects on demand: a decision over a thousand members makes no object per member.
Scores are compared column by column, the lowest wins; members equal in every column take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from balancer.membership.members import ExclusionCause, MemberView, Role
from balancer.membership.snapshot import CAUSES, Codes, Columns, Floats, Ints, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A member that was no candidate, and why."""

    member_id: str
    role: Role
    cause: ExclusionCause
    detail: str = ""

    def __str__(self) -> str:
        """One phrase for messages."""
        return f"{self.member_id}: {self.cause.value}" + (f", {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A member that could have been chosen, with its score; the lowest score wins."""

    member_id: str
    role: Role
    score: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """One side of a decision.

    Attributes:
        needed_tokens: Context the request needs, for explanations.
        cause: Code per row, as in `Columns`, now with the causes of this request; `[rows]`.
        rows: The candidates, ascending; `[candidates]`.
        names: What each column of the scores is, most important first.
        scores: `[candidates, len(names)]`.
        chosen: Row of the winner; -1 if there is none.
        ties: How many candidates shared the best score.
    """

    snapshot: Snapshot
    role: Role
    needed_tokens: int
    cause: Codes
    rows: Ints
    names: tuple[str, ...]
    scores: Floats
    chosen: int
    ties: int

    def __eq__(self, other: object) -> bool:
        """Whether both saw and chose the same; snapshots are not compared."""
        if not isinstance(other, Judgement):
            return NotImplemented
        return (
            (self.role, self.names, self.chosen, self.ties)
            == (other.role, other.names, other.chosen, other.ties)
            and np.array_equal(self.cause, other.cause)
            and np.array_equal(self.rows, other.rows)
            and np.array_equal(self.scores, other.scores)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def columns(self) -> Columns:
        """The members as they were known."""
        return self.snapshot.of(self.role)

    @property
    def chosen_id(self) -> str:
        """Id of the winner; empty if there is none."""
        return self.columns.fixed.ids[self.chosen] if self.chosen >= 0 else ""

    def view(self, row: int) -> MemberView | None:
        """A member as an object; None for row -1."""
        return self.snapshot.view(self.role, row) if row >= 0 else None

    def runner_up(self) -> int:
        """Row of the best candidate that was not chosen; -1 if there is none."""
        others = np.flatnonzero(self.rows != self.chosen)
        if not len(others) or self.chosen < 0:
            return -1
        order = np.lexsort(self.scores[others].T[::-1])
        return int(self.rows[others[order[0]]])

    def margin(self) -> tuple[str, float]:
        """The first column in which winner and runner-up differ, and by how much; or ("", 0)."""
        other = self.runner_up()
        if other >= 0:
            best, second = self.score_of(self.chosen), self.score_of(other)
            for name, low, high in zip(self.names, best, second, strict=True):
                if low != high:
                    return name, high - low
        return "", 0.0

    def score_of(self, row: int) -> tuple[float, ...]:
        """Score of a candidate."""
        return tuple(self.scores[int(np.searchsorted(self.rows, row))].tolist())

    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates as objects."""
        ids = self.columns.fixed.ids
        return tuple(
            Candidate(member_id=ids[row], role=self.role, score=tuple(score))
            for row, score in zip(self.rows.tolist(), self.scores.tolist(), strict=True)
        )

    def exclusions(self) -> tuple[Exclusion, ...]:
        """The others as objects."""
        return tuple(
            Exclusion(
                member_id=self.columns.fixed.ids[row],
                role=self.role,
                cause=CAUSES[self.cause[row] - 1],
                detail=self._detail(row),
            )
            for row in np.flatnonzero(self.cause).tolist()
        )

    def summary(self) -> str:
        """The choice in one phrase."""
        if self.chosen < 0:
            return "none"
        terms = ", ".join(
            f"{name} {value:.4g}"
            for name, value in zip(self.names, self.score_of(self.chosen), strict=True)
        )
        return f"{self.chosen_id} ({terms}; 1 of {self.ties} equal)"

    def _detail(self, row: int) -> str:
        fixed, cause = self.columns.fixed, CAUSES[self.cause[row] - 1]
        needed = self.needed_tokens
        if cause is ExclusionCause.CONTEXT:
            return f"{needed} tokens do not fit in {fixed.max_model_len[row]}"
        if cause is ExclusionCause.CAPACITY:
            return f"{needed} tokens never fit in {fixed.kv_capacity[row]}"
        if cause in (ExclusionCause.NO_PARTNER, ExclusionCause.OTHER_LAYOUT):
            return self.columns.members[row].fingerprint.hex()
        return self.snapshot.detail(self.role, row)
