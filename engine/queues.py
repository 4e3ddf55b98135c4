"""The live sequences of an engine in order of arrival: who waits, who runs, who gives way. Pure.

    add -> waiting --admit--> running --remove->
              ^                  |
              +-----preempt------+         (waiting --remove-> as well)

Invariants: a sequence is in one queue; both are ordered by arrival, so a preempted sequence waits
where it once stood. The victim is the running sequence that arrived last, or of the paused ones
the last: the oldest one that is not paused is never a victim while others run.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engine.sequence import Sequence


class Queues:
    """Two queues. The lists are read by others, and changed here only."""

    __slots__ = ("_next_arrival_idx", "running", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._next_arrival_idx = 0

    def take_arrival_idx(self) -> int:
        """Returns the next place in the order of arrival; each is given once."""
        self._next_arrival_idx += 1
        return self._next_arrival_idx

    def live(self) -> Iterator[Sequence]:
        """Yields every sequence, the running first."""
        yield from self.running
        yield from self.waiting

    def add(self, sequence: Sequence) -> None:
        """Lets a sequence wait at its place."""
        insort(self.waiting, sequence, key=_arrival)

    def admit(self, sequence: Sequence) -> None:
        """Moves a waiting sequence to those that run."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_arrival)

    def preempt(self, sequence: Sequence) -> None:
        """Moves a running sequence back to those that wait."""
        self.running.remove(sequence)
        self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence that is final."""
        queue = self.running if sequence in self.running else self.waiting
        queue.remove(sequence)

    def last_paused(self) -> Sequence | None:
        """Returns the running sequence that is paused and arrived last, if one is paused."""
        return next((other for other in reversed(self.running) if other.is_paused), None)

    def victim(self) -> Sequence:
        """Returns the running sequence that gives way when a page is missing.

        Raises:
            IndexError: nothing runs.
        """
        return self.last_paused() or self.running[-1]

    def check_integrity(self) -> None:
        """Checks the order.

        Raises:
            AssertionError: an invariant is broken.
        """
        for queue in (self.waiting, self.running):
            arrivals = [sequence.arrival_idx for sequence in queue]
            if arrivals != sorted(set(arrivals)):
                raise AssertionError("a queue is not in order of arrival")


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival_idx
