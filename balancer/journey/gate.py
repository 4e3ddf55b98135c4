"""Waiting for admission: the event-loop side of `admission.py`.

`slot` is an async context manager, so a request that leaves by any door (end, error, cancellation)
frees its place, and the next one in the queue starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from balancer.admission import Admission, Verdict
from runtime.clock import Clock
from runtime.errors import Overloaded, Reason


class Gate:
    """Lets requests in as `admission` decides.

    Args:
        max_wait_s: A request that waited this long is refused with a retry hint.
    """

    def __init__(self, admission: Admission, clock: Clock, *, max_wait_s: float) -> None:
        self._admission = admission
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._wakers: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def slot(self, request_id: str, *, priority: int) -> AsyncIterator[None]:
        """Waits for a place and holds it.

        Raises:
            Overloaded: QUEUE_FULL: no place in the queue, or none to run within `max_wait_s`.
        """
        verdict = self._admission.offer(request_id, priority=priority, now=self._clock.now())
        if verdict is Verdict.REFUSED:
            raise self._refusal("all places of the queue are taken")
        try:
            if verdict is Verdict.WAITING:
                await self._wait(request_id)
            yield
        finally:
            # Granted and cancelled at once is possible, so both are undone; each is idempotent.
            self._admission.withdraw(request_id)
            for started in self._admission.release(request_id, self._clock.now()):
                if waker := self._wakers.get(started):
                    waker.set()

    async def _wait(self, request_id: str) -> None:
        waker = self._wakers[request_id] = asyncio.Event()
        try:
            async with asyncio.timeout(self._max_wait_s):
                await waker.wait()
        except TimeoutError:
            if not waker.is_set():
                raise self._refusal(f"no place became free within {self._max_wait_s:g} s") from None
        finally:
            del self._wakers[request_id]

    def _refusal(self, why: str) -> Overloaded:
        hint_s = self._admission.retry_after_s()
        return Overloaded(
            f"the balancer is full: {why}; try again in {hint_s:.1f} s",
            reason=Reason.QUEUE_FULL,
            retry_after_s=hint_s,
        )
