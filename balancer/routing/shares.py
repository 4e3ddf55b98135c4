"""How many prefill engines each length class gets, and which. Pure arithmetic.

Per round, the ideal share of a class is its part of the demand (predicted seconds of what arrived,
plus what was carried over). Shares are rounded by largest remainder, with a floor of one engine for
every class that must be servable as long as there are enough engines. Then engines move:

- a floor that is not met is met at once; otherwise at most `max_moves` engines a round move, and
  only if the worst demand per engine falls by more than `min_gain`;
- an engine that moves first serves what it has; it takes work of its new class when that is done;
- engines that come join the class that lacks most; engines that go leave their class as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A prefill member as a round finds it: its outstanding seconds and requests."""

    engine_id: str
    quota_s: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Which engine serves which class; immutable.

    Attributes:
        class_of: By engine id; an engine that is not named serves every class.
        moving: Those that still serve what they had before they moved.
        demand_s: What the classes asked for in the round that led to this, in seconds.
    """

    class_of: Mapping[str, int] = field(default_factory=dict)
    moving: frozenset[str] = frozenset()
    demand_s: tuple[float, ...] = ()

    def counts(self, num_classes: int) -> list[int]:
        """Engines per class, moving ones with their new class."""
        counted = Counter(self.class_of.values())
        return [counted[index] for index in range(num_classes)]


def largest_remainder(
    demand: Sequence[float], num_engines: int, must_serve: Sequence[bool]
) -> list[int]:
    """Engines per class: they sum to `num_engines`, in proportion to demand.

    Each class that must be served has at least one if there are as many engines as such classes.
    Without any demand the classes that must be served are treated alike.
    """
    wanted = [float(value) for value in demand]
    if sum(wanted) <= 0:
        wanted = [float(must) for must in must_serve]
    if sum(wanted) <= 0:
        wanted = [1.0] * len(wanted)
    ideal = [num_engines * value / sum(wanted) for value in wanted]
    has_floor = num_engines >= sum(must_serve)
    floors = [int(must and has_floor) for must in must_serve]
    shares = [max(floor, int(value)) for floor, value in zip(floors, ideal, strict=True)]
    while sum(shares) < num_engines:
        lacking = max(range(len(shares)), key=lambda k: (ideal[k] - shares[k], -k))
        shares[lacking] += 1
    while sum(shares) > num_engines:
        spare = [k for k in range(len(shares)) if shares[k] > floors[k]]
        shares[max(spare, key=lambda k: (shares[k] - ideal[k], -k))] -= 1
    return shares


def next_shares(
    shares: Shares,
    engines: Sequence[Engine],
    demand: Sequence[float],
    must_serve: Sequence[bool],
    *,
    max_moves: int,
    min_gain: float,
) -> Shares:
    """The shares of the next round; see the module."""
    present = {engine.engine_id: engine for engine in engines}
    target = largest_remainder(demand, len(engines), must_serve)
    is_first = not shares.class_of.keys() & present.keys()
    class_of = {name: shares.class_of[name] for name in present if name in shares.class_of}
    moving = {name for name in shares.moving if name in present and present[name].requests}
    for name in sorted(present.keys() - class_of.keys()):
        class_of[name] = _most(target, class_of)
    if not is_first:
        _meet_floors(class_of, moving, present, target, must_serve)
        moves = _moves(class_of, moving, present, target, max_moves)
        after = {**class_of, **moves}
        if moves and _worst(demand, class_of) * (1 - min_gain) > _worst(demand, after):
            class_of = after
            moving |= {name for name in moves if present[name].requests}
    return Shares(
        class_of=dict(sorted(class_of.items())),
        moving=frozenset(moving),
        demand_s=tuple(float(value) for value in demand),
    )


def _most(target: Sequence[int], class_of: Mapping[str, int]) -> int:
    """The class that lacks most engines."""
    counted = Counter(class_of.values())
    return max(range(len(target)), key=lambda k: (target[k] - counted[k], -k))


def _meet_floors(
    class_of: dict[str, int],
    moving: set[str],
    present: Mapping[str, Engine],
    target: Sequence[int],
    must_serve: Sequence[bool],
) -> None:
    """Gives a class that must be served and lost its last engine one of the richest class."""
    for index, must in enumerate(must_serve):
        counted = Counter(class_of.values())
        if not must or counted[index] or not target[index]:
            continue
        richest = max(counted, key=lambda k: (counted[k] - target[k], counted[k], -k))
        if counted[richest] > 1 or not must_serve[richest]:
            name = _idlest(class_of, moving, present, richest)
            class_of[name] = index
            if present[name].requests:
                moving.add(name)


def _moves(
    class_of: Mapping[str, int],
    moving: set[str],
    present: Mapping[str, Engine],
    target: Sequence[int],
    max_moves: int,
) -> dict[str, int]:
    """Up to `max_moves` engines from classes above their target to those below, biggest gap first.

    Engines that still move stay where they are.
    """
    moves: dict[str, int] = {}
    while len(moves) < max_moves:
        now = {**class_of, **moves}
        counted = Counter(now.values())
        gaps = [target[k] - counted[k] for k in range(len(target))]
        to = max(range(len(gaps)), key=lambda k: (gaps[k], -k))
        settled = {name for name in class_of if name not in moving and name not in moves}
        givers = [k for k in range(len(gaps)) if gaps[k] < 0 and any(now[n] == k for n in settled)]
        if gaps[to] <= 0 or not givers:
            break
        giver = min(givers, key=lambda k: (gaps[k], k))
        moves[_idlest(now, moving | moves.keys(), present, giver)] = to
    return moves


def _idlest(
    class_of: Mapping[str, int], moving: set[str], present: Mapping[str, Engine], index: int
) -> str:
    """The engine of a class with the least to do; settled ones first."""
    own = [name for name in class_of if class_of[name] == index]
    return min(own, key=lambda name: (name in moving, present[name].quota_s, name))


def _worst(demand: Sequence[float], class_of: Mapping[str, int]) -> float:
    """The most demand per engine of any class with demand."""
    counted = Counter(class_of.values())
    return max(
        (
            value / counted[k] if counted[k] else float("inf")
            for k, value in enumerate(demand)
            if value > 0
        ),
        default=0.0,
    )
