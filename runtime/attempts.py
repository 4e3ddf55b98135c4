"""One running attempt per request on this process.

A request that was dispatched again carries a higher attempt number. While the older attempt still
runs here it is a zombie: it is ended when the newer one arrives, and refused when it comes late.
Finished attempts are forgotten, so that a caller who starts over with attempt 1 is served.

Belongs to one event loop. Invariant: at most one entry per request id, and its task is alive.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.errors import AlreadyRunning, Conflict, Reason


class _Entry:
    def __init__(self, attempt: int, task: "asyncio.Task[object]") -> None:
        self.attempt = attempt
        self.task = task
        self.cancelling = task.cancelling()
        self.successor: int | None = None


class AttemptFence:
    """Who runs here, by request id."""

    def __init__(self) -> None:
        self._running: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def enter(self, request_id: str, attempt: int) -> Iterator[None]:
        """Holds the place of `request_id` for the body, which runs in the current task.

        Raises:
            AlreadyRunning: This attempt runs already.
            Conflict: A newer attempt runs, or arrived while the body ran.
            RuntimeError: Called outside a task.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("an attempt runs in a task")
        older = self._running.get(request_id)
        if older is not None:
            if older.attempt == attempt:
                raise AlreadyRunning(
                    f"request_id {request_id!r} attempt {attempt} runs already; wait for it or "
                    "choose another id"
                )
            if older.attempt > attempt:
                raise _stale(request_id, attempt, older.attempt)
            older.successor = attempt
            older.task.cancel()
        entry = _Entry(attempt, task)
        self._running[request_id] = entry
        try:
            yield
        except asyncio.CancelledError:
            # As in asyncio.timeout: only our own cancellation turns into an error.
            if entry.successor is not None and task.uncancel() <= entry.cancelling:
                raise _stale(request_id, attempt, entry.successor) from None
            raise
        finally:
            if self._running.get(request_id) is entry:
                del self._running[request_id]


def _stale(request_id: str, attempt: int, newer: int) -> Conflict:
    return Conflict(
        f"request_id {request_id!r}: attempt {attempt} is stale, attempt {newer} took over",
        reason=Reason.STALE_ATTEMPT,
        metadata={"newest_attempt": str(newer)},
    )
