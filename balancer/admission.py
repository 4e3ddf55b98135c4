"""Who may run now, who waits, who is refused. Pure: calls and `now` in, verdicts out.

At most `max_running` requests run and at most `max_waiting` wait; the next one is refused with an
estimate of when to come back. Waiting requests start by priority, then by arrival. How long one
waits is bounded by its caller, who withdraws it.

    offer -> RUNNING | WAITING | refused
    WAITING --release of another--> RUNNING;  WAITING --withdraw--> gone;  RUNNING --release--> gone
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass

_FIRST_GUESS_S = 1.0  # how long a request runs, before one has been seen to end
_SMOOTHING = 0.1
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 30.0


class Verdict(enum.Enum):
    """Answer to an offered request."""

    RUNNING = "running"
    WAITING = "waiting"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionStatistics:
    """Sizes now and counts since start."""

    running: int
    waiting: int
    admitted: int
    refused: int


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Place in the queue; smaller is earlier."""

    negative_priority: int
    arrival: int
    request_id: str


class Admission:
    """A bounded set of running requests with a bounded queue before it.

    Args:
        max_running: Requests that may run at once.
        max_waiting: Requests that may wait; 0 refuses as soon as `max_running` run.
    """

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        if max_running < 1 or max_waiting < 0:
            raise ValueError(
                f"max_running {max_running} must be at least 1 and max_waiting {max_waiting} "
                "at least 0"
            )
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._running: dict[str, float] = {}
        self._waiting: list[_Place] = []
        self._places: dict[str, _Place] = {}
        self._arrivals = 0
        self._admitted = 0
        self._refused = 0
        self._mean_run_s = _FIRST_GUESS_S

    def offer(self, request_id: str, *, priority: int, now: float) -> Verdict:
        """Asks for a place.

        Raises:
            ValueError: The id runs or waits already.
        """
        if request_id in self._running or request_id in self._places:
            raise ValueError(f"request {request_id!r} has a place already")
        if len(self._running) < self._max_running:
            self._start(request_id, now)
            return Verdict.RUNNING
        if len(self._waiting) >= self._max_waiting:
            self._refused += 1
            return Verdict.REFUSED
        self._arrivals += 1
        place = _Place(-priority, self._arrivals, request_id)
        bisect.insort(self._waiting, place)
        self._places[request_id] = place
        return Verdict.WAITING

    def release(self, request_id: str, now: float) -> list[str]:
        """Ends a running request (unknown ids change nothing); returns those that start now."""
        started_at = self._running.pop(request_id, None)
        if started_at is None:
            return []
        self._mean_run_s += _SMOOTHING * (now - started_at - self._mean_run_s)
        return self._promote(now)

    def withdraw(self, request_id: str) -> bool:
        """Takes a waiting request out of the queue; returns whether it waited."""
        place = self._places.pop(request_id, None)
        if place is not None:
            self._waiting.remove(place)
        return place is not None

    def retry_after_s(self) -> float:
        """When a refused request should come back: the queue's length in service times."""
        wait = self._mean_run_s * (len(self._waiting) + 1) / self._max_running
        return min(max(wait, _MIN_RETRY_S), _MAX_RETRY_S)

    def statistics(self) -> AdmissionStatistics:
        """Sizes now and counts since start."""
        return AdmissionStatistics(
            running=len(self._running),
            waiting=len(self._waiting),
            admitted=self._admitted,
            refused=self._refused,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if an invariant is broken; for tests."""
        assert len(self._running) <= self._max_running
        assert len(self._waiting) <= self._max_waiting
        assert {place.request_id for place in self._waiting} == set(self._places)
        assert not self._places.keys() & self._running.keys()
        assert self._waiting == sorted(self._waiting)
        assert not self._waiting or len(self._running) == self._max_running, "idle room, full queue"

    def _start(self, request_id: str, now: float) -> None:
        self._running[request_id] = now
        self._admitted += 1

    def _promote(self, now: float) -> list[str]:
        started = []
        while self._waiting and len(self._running) < self._max_running:
            place = self._waiting.pop(0)
            del self._places[place.request_id]
            self._start(place.request_id, now)
            started.append(place.request_id)
        return started
