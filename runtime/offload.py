"""Blocking calls off the event loop whose results are never lost.

`asyncio.to_thread` forgets a call when its caller is cancelled: the thread runs on and whatever it
acquired (a lease, a file, a socket) has no owner any more. `offload` gives such a result to
`dispose`, in a thread, as soon as it exists, and lets the cancellation go on after a bounded wait.
Knows nothing of what is called.

Invariant: the result of a call reaches exactly one of the awaiting caller and `dispose`.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

CLEANUP_S = 0.8
"""Seconds a cancelled caller waits for his thread: longer than a round trip to a store, shorter
than the second within which everything of a caller who left has to be free."""


async def offload(
    executor: Executor | None,
    call: Callable[[], T],
    *,
    dispose: Callable[[T], object] | None = None,
    cleanup_s: float = CLEANUP_S,
) -> T:
    """Returns `call()`, run in a thread of `executor`.

    Args:
        executor: Where to run; None is the default executor of the loop.
        call: The blocking function; it sees the context variables of the caller.
        dispose: Receives the result, in a thread, if the caller was cancelled and cannot.
        cleanup_s: Seconds a cancelled caller waits for the thread and for `dispose`.

    Raises:
        Whatever `call` raises.
    """
    loop = asyncio.get_running_loop()
    owned = _Owned(call, dispose)
    running = loop.run_in_executor(executor, contextvars.copy_context().run, owned.run)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # Nobody asks for the outcome any more; a failure must not be reported as unseen.
        running.add_done_callback(_mark_seen)
        waiting: set[asyncio.Future[None]] = {_outcome_free(running)}
        if owned.abandon():
            waiting.add(loop.run_in_executor(executor, owned.throw_away))
        await _settle(waiting, loop.time() + cleanup_s)
        raise


async def clean_up(
    executor: Executor | None, call: Callable[[], object], *, cleanup_s: float = CLEANUP_S
) -> None:
    """Runs `call` in a thread without fail, and waits for it up to `cleanup_s` seconds.

    For `finally` and `except` blocks: cancellations that arrive meanwhile do not cut it short, and
    an exception of `call` is logged, so that the one being handled goes on.
    """
    loop = asyncio.get_running_loop()

    def run() -> None:
        try:
            call()
        except Exception:
            logger.warning("clean-up failed", exc_info=True)

    running = loop.run_in_executor(executor, run)
    await _settle({_outcome_free(running)}, loop.time() + cleanup_s)


class _Owned(Generic[T]):
    """Hands one result either to the caller or to `dispose`."""

    def __init__(self, call: Callable[[], T], dispose: Callable[[T], object] | None) -> None:
        self._call = call
        self._dispose = dispose
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._results: list[T] = []  # the result once it exists and while nobody threw it away

    def run(self) -> T:
        """Runs the call; in the worker thread."""
        with self._lock:
            if self._is_abandoned:
                raise RuntimeError("cancelled before it began: nothing was acquired")
        result = self._call()
        if self._keep(result):
            self.throw_away()
        return result

    def _keep(self, result: T) -> bool:
        """Stores the result for its owner; true if there is none any more."""
        with self._lock:
            self._results.append(result)
            return self._is_abandoned

    def abandon(self) -> bool:
        """Says that nobody will take the result; true if it exists and has to be thrown away."""
        with self._lock:
            self._is_abandoned = True
            return bool(self._results)

    def throw_away(self) -> None:
        """Disposes of the result once, however often it is called; in a thread."""
        with self._lock:
            results, self._results = self._results, []
        if self._dispose is None:
            return
        for result in results:
            try:
                self._dispose(result)
            except Exception:
                # What leaks here carries a deadline of its own; nobody is left to be told.
                logger.warning("disposing of an abandoned result failed", exc_info=True)


def _mark_seen(future: "asyncio.Future[T]") -> None:
    if not future.cancelled():
        future.exception()


def _outcome_free(future: "asyncio.Future[T]") -> "asyncio.Future[None]":
    """A future that is done when `future` is, without its outcome."""
    done: asyncio.Future[None] = future.get_loop().create_future()

    def finish(_: "asyncio.Future[T]") -> None:
        if not done.done():
            done.set_result(None)

    future.add_done_callback(finish)
    return done


async def _settle(waiting: "set[asyncio.Future[None]]", deadline: float) -> None:
    """Waits for all of `waiting` until `deadline` (loop time), whatever cancellations arrive."""
    loop = asyncio.get_running_loop()
    while waiting and loop.time() < deadline:
        try:
            _, waiting = await asyncio.wait(waiting, timeout=deadline - loop.time())
        except asyncio.CancelledError:
            # The caller re-raises the first cancellation; the deadline bounds this loop.
            continue
