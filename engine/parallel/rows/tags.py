"""Which rows a rank holds and what their values mean: tags that travel with every row tensor.

Two replicated copies and two partial sums have equal shapes, and an all-reduce is right for one
and wrong for the other. So a row tensor says what it is, and each move (transitions.py) checks it.
Knows no collective; only the tagged tensor itself needs torch.

Invariants:
- a tagged tensor has exactly the rows its row set says;
- counts are agreed values: equal on every rank of the group they describe.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.parallel.errors import ParallelError

if TYPE_CHECKING:
    from torch import Tensor


class TagError(ParallelError, AssertionError):
    """A move that would give a wrong value of the right shape."""


class RowRule(enum.Enum):
    """Which rows: all of this attention group, a slice of them, those of all groups, or a cut."""

    OWN = "own"
    CHUNK = "chunk"
    GLOBAL = "global"
    MIRROR = "mirror"


class ValueState(enum.Enum):
    """What the values are, relative to a group of ranks.

    REP: identical full values. PART: addends whose sum over the group is the value. UNIQ: rows of
    different tokens on each member.
    """

    REP = "replicated"
    PART = "partial"
    UNIQ = "unique"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSet:
    """Which rows of a step a rank holds, in order, and where padding stands.

    Args:
        rule: how the parts came about.
        counts: real rows of each part.
        slots: rows each part takes in a buffer, at least its count; padding stands at its tail.
        part: which part is here; None means all parts, one after the other.
        parent: what a CHUNK or a MIRROR was cut from.
    """

    rule: RowRule
    counts: tuple[int, ...]
    slots: tuple[int, ...]
    part: int | None = None
    parent: RowSet | None = None

    def __post_init__(self) -> None:
        """Refuses counts that do not fit their slots."""
        if len(self.counts) != len(self.slots) or any(
            not 0 <= count <= slot for count, slot in zip(self.counts, self.slots, strict=False)
        ):
            raise ValueError(f"counts {self.counts} do not fit slots {self.slots}")
        if self.part is not None and not 0 <= self.part < len(self.counts):
            raise ValueError(f"part {self.part} is not in 0..{len(self.counts) - 1}")

    @classmethod
    def own(cls, counts: Sequence[int], part: int) -> RowSet:
        """All rows of attention group `part`, given the rows of every group."""
        return cls(rule=RowRule.OWN, counts=tuple(counts), slots=tuple(counts), part=part)

    @property
    def num_rows(self) -> int:
        """Rows of the tensor, padding included."""
        return sum(self.slots) if self.part is None else self.slots[self.part]

    @property
    def num_real(self) -> int:
        """Rows that are tokens."""
        return sum(self.counts) if self.part is None else self.counts[self.part]

    @property
    def offsets(self) -> tuple[int, ...]:
        """First row of each part when all parts stand one after the other."""
        return tuple(sum(self.slots[:part]) for part in range(len(self.slots)))

    @property
    def is_real(self) -> tuple[bool, ...]:
        """For each row, whether it is a token; padding must not reach a router or an expert."""
        parts = range(len(self.slots)) if self.part is None else (self.part,)
        return tuple(row < self.counts[part] for part in parts for row in range(self.slots[part]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaggedRows:
    """A row tensor with its tags.

    Args:
        values: [num_rows, ...].
        rows: which rows these are.
        states: what the values are, by name of the group they are relative to.

    Raises:
        TagError: another number of rows than the row set has.
    """

    values: Tensor
    rows: RowSet
    states: Mapping[str, ValueState]

    def __post_init__(self) -> None:
        """Compares the tensor with its row set."""
        if len(self.values) != self.rows.num_rows:
            raise TagError(
                f"{len(self.values)} rows are tagged {self.rows.rule.value} with "
                f"{self.rows.num_rows} rows: cut or pad before tagging"
            )

    def require(self, group: str, state: ValueState, move: str) -> None:
        """Checks the state relative to a group before a move.

        Raises:
            TagError: names the move, the group, what was found and what is wanted.
        """
        found = self.states.get(group)
        if found is not state:
            raise TagError(
                f"{move} over {group} wants {state.value} values, these are "
                f"{found.value if found else 'untagged'}: {_CONSEQUENCES[state]}"
            )

    def with_values(self, values: Tensor, **states: ValueState) -> TaggedRows:
        """The same rows with new values; states that are not named stay."""
        return replace(self, values=values, states={**self.states, **states})


_CONSEQUENCES = {
    ValueState.PART: "adding up full values multiplies them",
    ValueState.REP: "addends or other tokens' rows are not the value",
    ValueState.UNIQ: "copies would be processed more than once",
}
