"""The requests that run now: one per id, each with one deadline and one switch to end it.

`scope` wraps the whole journey of a request. Its deadline and `cancel` both end the body by
cancellation, so that everything the body holds is given back on the way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from balancer.journey.request import Request
from runtime.clock import Clock
from runtime.errors import AlreadyRunning, Reason, TooLate


class RequestCancelled(Exception):
    """Somebody ended the request through `RunningRequests.cancel`."""


class _Entry:
    def __init__(self, deadline: asyncio.Timeout, owner: str | None) -> None:
        self.deadline = deadline
        self.owner = owner
        self.is_cancelled = False


class RunningRequests:
    """The requests of one balancer, by id; belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        """How many run."""
        return len(self._entries)

    @asynccontextmanager
    async def scope(self, request: Request) -> AsyncIterator[None]:
        """Runs the body as this request.

        Raises:
            AlreadyRunning: The id is in use.
            TooLate: The deadline passed.
            RequestCancelled: `cancel` was called.
        """
        request_id = request.request_id
        if request_id in self._entries:
            raise AlreadyRunning(
                f"request_id: {request.public_id!r} is running; wait for its end, cancel it, or "
                "choose another id",
                reason=Reason.DUPLICATE_REQUEST,
            )
        timeout_s = request.deadline - self._clock.now()
        entry: _Entry | None = None
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                entry = self._entries[request_id] = _Entry(deadline, request.owner)
                try:
                    yield
                finally:
                    del self._entries[request_id]
        except TimeoutError as error:
            if entry is None or not entry.deadline.expired():
                raise
            if entry.is_cancelled:
                raise RequestCancelled from error
            raise deadline_passed(request) from error

    def cancel(self, request_id: str, *, owner: str | None = None) -> bool:
        """Ends a running request; returns whether it ran. Twice is harmless.

        Args:
            owner: Tenant who asks: requests of others do not exist for it; None: all do.
        """
        entry = self._entries.get(request_id)
        if entry is None or (owner is not None and owner != entry.owner):
            return False
        if not entry.is_cancelled and not entry.deadline.expired():
            entry.is_cancelled = True
            entry.deadline.reschedule(asyncio.get_running_loop().time())
        return True


def deadline_passed(request: Request) -> TooLate:
    """The error of a request whose time is up."""
    allowed_s = request.deadline - request.arrived_at
    return TooLate(
        f"the request took longer than its {allowed_s:.1f} s; allow more time, or resume it with "
        "the same request_id and last_seq",
        reason=Reason.DEADLINE,
    )
