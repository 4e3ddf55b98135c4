"""A bounded set of running requests with a bounded queue per length class before it.

    offer -> RUNNING | WAITING | REFUSED | TOO_LATE
    WAITING --release of another--> RUNNING, or late;  WAITING --withdraw--> gone
    RUNNING --release--> gone

The next request is refused with an estimate of when to come back: REFUSED when a queue is full,
TOO_LATE when it could not meet its deadline. When a place becomes free, the class that was given
the fewest tokens so far starts one (a class that waited for nothing has no claim on the past), and
inside a class tenants and priorities decide; see `fair_queue`. As long as two classes wait, what
they were given differs by at most the largest request: neither long nor short work starves.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from balancer.admission.fair_queue import FairQueue, Place

_FIRST_GUESS_S = 1.0  # how long a request runs, before one has been seen to end
_SMOOTHING = 0.1
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 30.0


class Verdict(enum.Enum):
    """Answer to an offered request."""

    RUNNING = "running"
    WAITING = "waiting"
    REFUSED = "refused"
    TOO_LATE = "too late"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionStatistics:
    """Sizes now and counts since start; those by class have an entry per class."""

    running: int
    waiting: int
    running_by_class: tuple[int, ...]
    waiting_by_class: tuple[int, ...]
    admitted: int
    refused: int
    too_late: int


class Admission:
    """Bounded running, bounded waiting; see the module.

    Args:
        max_running: Requests that may run at once.
        max_waiting: Requests that may wait; 0 refuses as soon as `max_running` run.
        max_waiting_per_class: Of those, requests of one class; None: as many as may wait at all.
        num_classes: Length classes.
        weights: Share of a tenant; 1 for those that are not named.
        quantum_tokens: Tokens of a tenant's turn.
        ageing_s: Seconds of waiting that one step of priority is worth.
    """

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        max_waiting_per_class: int | None = None,
        num_classes: int = 1,
        weights: Mapping[str, float] | None = None,
        quantum_tokens: int = 8192,
        ageing_s: float = 10.0,
    ) -> None:
        if max_running < 1 or max_waiting < 0:
            raise ValueError(
                f"max_running {max_running} must be at least 1 and max_waiting {max_waiting} "
                "at least 0"
            )
        per_class = max_waiting if max_waiting_per_class is None else max_waiting_per_class
        if not 0 <= per_class <= max_waiting:
            raise ValueError(
                f"max_waiting_per_class {per_class} must be at least 0 and at most max_waiting "
                f"{max_waiting}"
            )
        if num_classes < 1 or quantum_tokens < 1:
            raise ValueError(
                f"num_classes {num_classes} and quantum_tokens {quantum_tokens} must be at least 1"
            )
        for tenant, weight in (weights or {}).items():
            if not (weight > 0 and math.isfinite(weight)):
                raise ValueError(f"weight {weight} of tenant {tenant!r} must be positive")
        if not ageing_s >= 0:
            raise ValueError(f"ageing_s {ageing_s} must be at least 0")
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_per_class = per_class
        self._ageing_s = ageing_s
        self._queues = [FairQueue(weights or {}, quantum_tokens) for _ in range(num_classes)]
        self._given = [0] * num_classes  # tokens started, as far as they count for turns
        self._running: dict[str, tuple[float, int]] = {}
        self._places: dict[str, tuple[int, Place]] = {}
        self._late: list[str] = []
        self._mean_run_s = [_FIRST_GUESS_S] * num_classes
        self._arrivals = 0
        self._admitted = 0
        self._refused = 0
        self._too_late = 0

    def offer(
        self,
        request_id: str,
        *,
        priority: int,
        now: float,
        length_class: int = 0,
        tenant: str = "",
        uncached_tokens: int = 1,
        deadline: float = math.inf,
        needs_s: float = 0.0,
    ) -> Verdict:
        """Asks for a place.

        Args:
            uncached_tokens: Prompt tokens to compute: what the request costs its tenant.
            deadline: When it has to be served.
            needs_s: Predicted seconds from its start until then.

        Raises:
            ValueError: The id runs or waits already.
        """
        if request_id in self._running or request_id in self._places:
            raise ValueError(f"request {request_id!r} has a place already")
        if now + self.forecast_s(length_class) + needs_s > deadline:
            self._too_late += 1
            return Verdict.TOO_LATE
        if len(self._running) < self._max_running:
            self._start(request_id, length_class, now)
            return Verdict.RUNNING
        queue = self._queues[length_class]
        if len(self._places) >= self._max_waiting or len(queue) >= self._max_per_class:
            self._refused += 1
            return Verdict.REFUSED
        self._arrivals += 1
        place = Place(
            now - priority * self._ageing_s,
            self._arrivals,
            request_id,
            tenant,
            max(1, uncached_tokens),
            deadline - needs_s,
        )
        if not len(queue):
            self._catch_up(length_class)
        queue.push(place)
        self._places[request_id] = (length_class, place)
        return Verdict.WAITING

    def release(self, request_id: str, now: float) -> list[str]:
        """Ends a running request (unknown ids change nothing); returns those that start now.

        Those whose deadline can no longer be met leave the queue instead; see `take_late`.
        """
        started_at, length_class = self._running.pop(request_id, (now, -1))
        if length_class < 0:
            return []
        mean_s = self._mean_run_s[length_class]
        self._mean_run_s[length_class] += _SMOOTHING * (now - started_at - mean_s)
        return self._promote(now)

    def withdraw(self, request_id: str) -> bool:
        """Takes a waiting request out of the queue; returns whether it waited."""
        length_class, place = self._places.pop(request_id, (0, None))
        if place is not None:
            self._queues[length_class].remove(place)
        return place is not None

    def take_late(self) -> list[str]:
        """Requests that left the queue because they were too late; each is named once."""
        late, self._late = self._late, []
        return late

    def forecast_s(self, length_class: int) -> float:
        """Predicted wait of a request of this class that comes now: all that waits before it."""
        is_free = len(self._running) < self._max_running
        return 0.0 if is_free else self._wait_s(length_class)

    def retry_after_s(self, length_class: int = 0, *, short_by_s: float = 0.0) -> float:
        """When a refused request should come back: a service time per place, or what it lacks."""
        wait_s = short_by_s or self._wait_s(length_class)
        return min(max(wait_s, _MIN_RETRY_S), _MAX_RETRY_S)

    def statistics(self) -> AdmissionStatistics:
        """Sizes now and counts since start."""
        running = [0] * len(self._queues)
        for _, length_class in self._running.values():
            running[length_class] += 1
        return AdmissionStatistics(
            running=len(self._running),
            waiting=len(self._places),
            running_by_class=tuple(running),
            waiting_by_class=tuple(map(len, self._queues)),
            admitted=self._admitted,
            refused=self._refused,
            too_late=self._too_late,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if an invariant is broken; for tests."""
        assert len(self._running) <= self._max_running
        assert len(self._places) <= self._max_waiting
        assert sum(map(len, self._queues)) == len(self._places)
        assert not self._places.keys() & self._running.keys()
        assert not self._places or len(self._running) == self._max_running, "idle room, full queue"
        for queue in self._queues:
            queue.check_integrity()
            assert len(queue) <= self._max_per_class

    def _wait_s(self, length_class: int) -> float:
        ahead = zip(self._queues, self._mean_run_s, strict=True)
        work_s = sum(len(queue) * mean_s for queue, mean_s in ahead)
        return (work_s + self._mean_run_s[length_class]) / self._max_running

    def _start(self, request_id: str, length_class: int, now: float) -> None:
        self._running[request_id] = (now, length_class)
        self._admitted += 1

    def _promote(self, now: float) -> list[str]:
        started = []
        while self._places and len(self._running) < self._max_running:
            waiting = [k for k, queue in enumerate(self._queues) if len(queue)]
            length_class = min(waiting, key=lambda k: (self._given[k], k))
            place = self._queues[length_class].pop()
            del self._places[place.request_id]
            if now > place.latest_start:
                self._late.append(place.request_id)
                self._too_late += 1
                continue
            self._given[length_class] += place.cost
            self._start(place.request_id, length_class, now)
            started.append(place.request_id)
        return started

    def _catch_up(self, length_class: int) -> None:
        """A class that begins to wait starts level with the one that is most behind."""
        waiting = [self._given[k] for k, queue in enumerate(self._queues) if len(queue)]
        if waiting:
            self._given[length_class] = max(self._given[length_class], min(waiting))
        else:
            self._given = [0] * len(self._given)
