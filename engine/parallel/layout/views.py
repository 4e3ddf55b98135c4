"""Views of the ranks: named axes over a range of ranks, coordinates and groups by one rearrange.

Several views share the same ranks: attention (replica, dp, cp, tp), experts (edp, ep, etp), store
(copy, enp), pipeline (pp). A group is all ranks of a view that differ in some axes only. A channel
is a group with a purpose: equal members never mean an equal channel. Pure arithmetic.

Invariants:
- ranks to coordinates is a bijection;
- the groups over any axes of a view partition its ranks.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from einops import rearrange

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Ordered named axes, outermost first, over ranks [first_rank, first_rank + size).

    Args:
        name: for messages.
        axes: axis names and their sizes; the last one is innermost (fastest).
        first_rank: rank of coordinates 0, 0, ..
    """

    name: str
    axes: Mapping[str, int]
    first_rank: int = 0

    @property
    def size(self) -> int:
        """Ranks of the view."""
        return math.prod(self.axes.values())

    def __contains__(self, rank: int) -> bool:
        """Whether a rank stands in the view."""
        return self.first_rank <= rank < self.first_rank + self.size

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinate of a rank on each axis, by mixed radix.

        Raises:
            ValueError: the rank does not stand in this view.
        """
        if rank not in self:
            last = self.first_rank + self.size - 1
            raise ValueError(f"rank {rank} is not in {self.first_rank}..{last} ({self.name} view)")
        left = rank - self.first_rank
        found: dict[str, int] = {}
        for axis, size in reversed(tuple(self.axes.items())):
            left, found[axis] = divmod(left, size)
        return {axis: found[axis] for axis in self.axes}

    def rank_of(self, coordinates: Mapping[str, int]) -> int:
        """Rank at coordinates; axes left out count as 0.

        Raises:
            ValueError: an unknown axis, or a coordinate outside its axis.
        """
        for axis, place in coordinates.items():
            if not 0 <= place < self.axes.get(axis, 0):
                raise ValueError(
                    f"{self.name} view: {axis} = {place} is outside its axes {dict(self.axes)}"
                )
        rank = 0
        for axis, size in self.axes.items():
            rank = rank * size + coordinates.get(axis, 0)
        return self.first_rank + rank

    def groups(self, *members: str) -> Groups:
        """Groups of ranks that differ in the `members` axes only, by first member.

        Ranks stand in a group in the order of the named axes, the last one fastest.
        """
        fixed = " ".join(axis for axis in self.axes if axis not in members)
        pattern = f"({' '.join(self.axes)}) -> ({fixed}) ({' '.join(members)})"
        ranks = np.arange(self.first_rank, self.first_rank + self.size)
        table = rearrange(ranks, pattern, **self.axes)
        return tuple(sorted(tuple(row) for row in _rows(table)))

    def group_of(self, rank: int, *members: str) -> tuple[int, ...]:
        """The group over some axes that a rank belongs to."""
        return next(group for group in self.groups(*members) if rank in group)


def _rows(table: np.ndarray) -> list[list[int]]:
    rows: list[list[int]] = table.tolist()
    return rows


class Transport(enum.Enum):
    """What carries a channel."""

    DEVICE = "device"
    HOST = "host"
    ONE_SIDED = "one-sided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A communicator: who, and for what. Ordering and time-outs belong to it.

    Args:
        family: which groups it is one of, such as "ep".
        purpose: what travels, such as "experts".
        members: global ranks, in order.
        transport: what carries it.
    """

    family: str
    purpose: str
    members: tuple[int, ...]
    transport: Transport

    @property
    def needs_warm_up(self) -> bool:
        """Whether it must run one collective before first use; one-rank device channels too."""
        return self.transport is Transport.DEVICE

    def __str__(self) -> str:
        """Family, purpose and members, as logged."""
        return f"{self.family}/{self.purpose}{list(self.members)}"
