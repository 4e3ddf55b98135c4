"""Giving things back after a request has left: owned, bounded, never in the way.

A request that is cancelled cannot wait for a credit to be returned or a hand-off to be dropped, and
its cancellation must not cut that short. It leaves such work here. Each piece has a second; what
fails is counted and logged, and ends by its own deadline on the other side.

So many pieces run at once; when thousands of callers leave together, the others wait their turn and
have their second then. All at once they would hold the event loop and run out of time together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self, TypeVar

from runtime.errors import DisaggError
from runtime.logging import get_logger

_log = get_logger(__name__)

_MAX_AT_ONCE = 128

T = TypeVar("T")


class CleanUps:
    """A task group for clean-up work; leaving it waits for what still runs.

    Args:
        limit_s: Seconds each piece may take.
    """

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._group = asyncio.TaskGroup()
        self._running = 0
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)
        self._is_closed = False
        self.failed: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Pieces that run now or wait for their turn, and calls of `take`."""
        return self._running

    async def __aenter__(self) -> Self:
        """Opens the group."""
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Waits for all pieces; each is bounded. What ended the body goes on as it is."""
        for _ in range(self._running):
            self._turns.release()  # a stop waits for one second, not for turns
        try:
            # With the body's exception the group would cancel the pieces and wrap it.
            await self._group.__aexit__(None, None, None)
        finally:
            self._is_closed = True

    def spawn(self, name: str, work: Coroutine[object, object, object]) -> None:
        """Runs `work` on its own; `name` labels its failure. Dropped if the group has ended."""
        if self._is_closed:
            work.close()
            self.failed[name] += 1
            return
        self._running += 1
        self._group.create_task(self._run(name, work), name=f"clean-up: {name}")

    async def take(
        self,
        name: str,
        work: Coroutine[object, object, T],
        give_back: Callable[[T], Coroutine[object, object, object]],
    ) -> T:
        """Awaits `work`, which takes something elsewhere, and returns its result.

        Whoever is cancelled meanwhile leaves at once; the call goes on to its end, and what it took
        is given back. To cancel the call would not do: the other side may have answered already.

        Args:
            name: Labels a failure to give back.
            work: Bounded by itself.
            give_back: Makes the clean-up of a result that nobody waits for.
        """
        taken: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                result = await work
            except Exception as error:
                if not taken.done():
                    taken.set_exception(error)
            else:
                if taken.done():
                    self.spawn(name, give_back(result))
                else:
                    taken.set_result(result)
            finally:
                taken.cancel()  # if the group ends us, nobody waits for ever
                self._running -= 1

        if self._is_closed:
            return await work
        self._running += 1
        self._group.create_task(run(), name=f"take: {name}")
        try:
            return await taken
        except asyncio.CancelledError:
            # Left between the answer and its being read.
            if not taken.cancelled() and taken.exception() is None:
                self.spawn(name, give_back(taken.result()))
            raise

    async def _run(self, name: str, work: Coroutine[object, object, object]) -> None:
        try:
            async with self._turns, asyncio.timeout(self._limit_s):
                await work
        except (DisaggError, TimeoutError, OSError) as error:
            self.failed[name] += 1
            _log.warning("clean_up.failed", what=name, error=str(error) or type(error).__name__)
        except Exception:  # a bug here must not take the balancer down with its group
            self.failed[name] += 1
            _log.error("clean_up.broken", what=name, exc_info=True)
        finally:
            work.close()  # had it waited for its turn in vain
            self._running -= 1
