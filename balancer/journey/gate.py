"""Waiting for admission: the event-loop side of `admission.py`.

`slot` is an async context manager, so a request that leaves by any door (end, error, cancellation)
frees its place, and the next one in the queue starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from balancer.admission import Admission, Verdict
from runtime.clock import Clock
from runtime.errors import Overloaded, Reason
from runtime.metrics import Metrics
from runtime.telemetry import current


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A request at the door.

    Attributes:
        length_class: Whose queue it joins.
        uncached_tokens: Prompt tokens to compute: what it costs its tenant.
        deadline: When it has to be served, on the balancer's clock.
        needs_s: Predicted seconds of its prefill.
    """

    request_id: str
    priority: int = 0
    length_class: int = 0
    tenant: str = ""
    uncached_tokens: int = 1
    deadline: float = float("inf")
    needs_s: float = 0.0


@dataclass(slots=True)
class _Waiter:
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    is_late: bool = False


class Gate:
    """Lets requests in as `admission` decides.

    Args:
        max_wait_s: A request that waited this long is refused with a retry hint.
    """

    def __init__(
        self, admission: Admission, clock: Clock, *, max_wait_s: float, metrics: Metrics
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._metrics = metrics
        self._waiters: dict[str, _Waiter] = {}

    @asynccontextmanager
    async def slot(self, applicant: Applicant) -> AsyncIterator[None]:
        """Waits for a place and holds it.

        Raises:
            Overloaded: QUEUE_FULL: no place in the queue, or none to run within `max_wait_s`, or
                none in time for the request's deadline.
        """
        with current().child("balancer.admit").aside() as span:
            async with self._admitted(applicant):
                span.end()
                yield

    @asynccontextmanager
    async def _admitted(self, applicant: Applicant) -> AsyncIterator[None]:
        if not self._admission.statistics().running:
            # Nobody is to be protected, and a bad estimate could never be corrected: let it try.
            applicant = replace(applicant, needs_s=0.0)
        request_id = applicant.request_id
        verdict = self._admission.offer(
            request_id,
            priority=applicant.priority,
            now=self._clock.now(),
            length_class=applicant.length_class,
            tenant=applicant.tenant,
            uncached_tokens=applicant.uncached_tokens,
            deadline=applicant.deadline,
            needs_s=applicant.needs_s,
        )
        if verdict is Verdict.REFUSED:
            raise self._refusal(applicant, "all places of the queue are taken")
        if verdict is Verdict.TOO_LATE:
            raise self._late(applicant)
        try:
            if verdict is Verdict.WAITING:
                await self._wait(applicant)
            yield
        finally:
            # Granted and cancelled at once is possible, so both are undone; each is idempotent.
            self._admission.withdraw(request_id)
            started = self._admission.release(request_id, self._clock.now())
            late = self._admission.take_late()
            for name in (*started, *late):
                if waiter := self._waiters.get(name):
                    waiter.is_late = name in late
                    waiter.woken.set()

    async def _wait(self, applicant: Applicant) -> None:
        waiter = self._waiters[applicant.request_id] = _Waiter()
        try:
            async with asyncio.timeout(self._max_wait_s):
                await waiter.woken.wait()
        except TimeoutError:
            if not waiter.woken.is_set():
                raise self._refusal(
                    applicant, f"no place became free within {self._max_wait_s:g} s"
                ) from None
        finally:
            del self._waiters[applicant.request_id]
        if waiter.is_late:
            raise self._late(applicant)

    def _refusal(self, applicant: Applicant, why: str) -> Overloaded:
        hint_s = self._admission.retry_after_s(applicant.length_class)
        self._metrics.count("disagg_admission_rejections_total", reason=Reason.QUEUE_FULL)
        return Overloaded(
            f"the balancer is full: {why}; try again in {hint_s:.1f} s",
            reason=Reason.QUEUE_FULL,
            retry_after_s=hint_s,
        )

    def _late(self, applicant: Applicant) -> Overloaded:
        wait_s = self._admission.forecast_s(applicant.length_class)
        left_s = applicant.deadline - self._clock.now()
        hint_s = self._admission.retry_after_s(
            applicant.length_class, short_by_s=max(0.0, wait_s + applicant.needs_s - left_s)
        )
        self._metrics.count("disagg_admission_rejections_total", reason="TOO_LATE")
        return Overloaded(
            f"the request could not be served in time: about {wait_s:.1f} s of waiting and "
            f"{applicant.needs_s:.1f} s of prefill, and {max(0.0, left_s):.1f} s are left; allow "
            f"more time, or try again in {hint_s:.1f} s",
            reason=Reason.QUEUE_FULL,
            retry_after_s=hint_s,
        )
