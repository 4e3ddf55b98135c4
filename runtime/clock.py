"""Time and randomness, the only place that reads them from the machine.

Everything else receives a `Clock` or a `Uniform` as an argument, so tests and the simulator decide
what time it is. Durations come from `now`; `wall` is for people and file names alone.
"""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Called from any thread, any number of times."""

    def now(self) -> float:
        """Seconds on a scale that only grows; its zero means nothing."""
        ...

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC; may jump."""
        ...


class Uniform(Protocol):
    """Where unseeded randomness comes from; `random.Random` is one."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    def wall(self) -> float:
        """See `Clock.wall`."""
        return time.time()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 0.0, wall: float = 1_000_000_000.0) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        """See `Clock.now`."""
        return self._now

    def wall(self) -> float:
        """See `Clock.wall`."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move both scales forward; raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"a clock does not go back, got {seconds} s")
        self._now += seconds
        self._wall += seconds


def system_random(seed: int | None = None) -> Uniform:
    """A source of its own; seeded by the machine unless `seed` is given."""
    return random.Random(seed)
