"""What would have changed a choice: the smallest change of one input that flips it.

Tried are the numbers of the winner (growing) and of the runner-up (shrinking), one at a time, on
each side of the pair. Every answer is verified: the record is decided again with the changed input,
and the next smaller change does not flip it. Sizes are compared relative to the value they change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from balancer.explain.decisions import DecisionRecord, re_execute
from balancer.membership.members import Role
from balancer.membership.snapshot import Columns, Snapshot
from balancer.routing.base import Placement, Policy, Verdict
from balancer.routing.judgement import Judgement

_FIELDS = {"requests": 1.0, "tokens": 1.0, "quota_s": 1e-3}
"""Columns that are tried, and the smallest step of each."""
_MAX_DOUBLINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One input that flips a choice.

    Attributes:
        column: Name of the input: outstanding requests, tokens, or predicted seconds.
        before, after: Its value in the record, and the nearest one that flips the choice.
        chosen_id: Who would be chosen then for that role; empty if there is no pair any more.
    """

    role: Role
    member_id: str
    column: str
    before: float
    after: float
    chosen_id: str

    @property
    def size(self) -> float:
        """Size of the change relative to the value, for values below one to one."""
        return abs(self.after - self.before) / max(1.0, abs(self.before))

    def __str__(self) -> str:
        """One sentence."""
        then = f"{self.chosen_id} would be chosen" if self.chosen_id else "there would be no pair"
        return (
            f"if {self.column} of {self.role.value} member {self.member_id} were "
            f"{self.after:g} instead of {self.before:g}, {then}"
        )


def what_would_change(record: DecisionRecord, policy: Policy) -> tuple[Change, ...]:
    """Changes of one input that flip the choice, smallest first; empty if none of them does.

    Raises:
        ValueError: The policy is not the one that decided.
    """
    placement = re_execute(record, policy)
    if placement.verdict is not Verdict.PLACE:
        return ()
    found = [
        change
        for side in (placement.prefill_side, placement.decode_side)
        for row, direction in _suspects(side)
        for column, step in _FIELDS.items()
        if (change := _search(record, policy, side, row, column, direction * step)) is not None
    ]
    return tuple(sorted(found, key=lambda change: change.size))


def _suspects(side: Judgement) -> Iterator[tuple[int, float]]:
    """Rows worth changing, and in which direction."""
    yield side.chosen, 1.0
    if (other := side.runner_up()) >= 0:
        yield other, -1.0


def _search(
    record: DecisionRecord, policy: Policy, side: Judgement, row: int, column: str, step: float
) -> Change | None:
    """The smallest multiple of `step` that flips the choice of this side."""
    before = float(getattr(side.columns, column)[row])
    limit = int(before / -step) if step < 0 else 1 << _MAX_DOUBLINGS

    def chosen(times: int) -> str | None:
        """Who is chosen after that change, None if still the same."""
        snapshot = _changed(record.snapshot, side.role, row, column, before + times * step)
        placement = policy.choose(record.request, snapshot, record.knowledge, record.rotation)
        name = _chosen_id(placement, side.role)
        return None if name == side.chosen_id else name

    high = 1
    while high <= limit and chosen(high) is None:
        high *= 2
    if high > limit:
        if limit < 1 or chosen(limit) is None:
            return None
        high = limit
    low = high // 2  # does not flip
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chosen(middle) is None else (low, middle)
    return Change(
        role=side.role,
        member_id=side.columns.fixed.ids[row],
        column=column,
        before=before,
        after=before + high * step,
        chosen_id=chosen(high) or "",
    )


def _changed(snapshot: Snapshot, role: Role, row: int, column: str, value: float) -> Snapshot:
    columns = snapshot.of(role)
    values = getattr(columns, column).copy()
    values[row] = value
    replaced: Columns = dataclasses.replace(columns, **{column: values})
    if role is Role.PREFILL:
        return dataclasses.replace(snapshot, prefill=replaced)
    return dataclasses.replace(snapshot, decode=replaced)


def _chosen_id(placement: Placement, role: Role) -> str:
    if placement.verdict is not Verdict.PLACE:
        return ""
    side = placement.prefill_side if role is Role.PREFILL else placement.decode_side
    return side.chosen_id
