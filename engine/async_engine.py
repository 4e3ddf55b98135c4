"""The only bridge between an event loop and the engine, whose step loop has its own thread.

Life of a request: `submit` checks it and posts it to the engine thread; its handle yields events;
leaving the handle (by any door) aborts what is not finished. Nothing here waits for a device.

    event loop thread                        engine thread
    submit, leave, pause ---- commands ----> applied between two steps
    handle queues        <----- events ----- once per step, for all requests together

Back-pressure: a handle whose reader lags pauses its sequence at `queue_events` and resumes it at
half of that. Its neighbours go on, and may take its memory.

Health is progress: the step loop takes a step, or finds that there is nothing to do, at least every
`idle_wait_s`; an old last progress means a stuck step, or work that nobody can run. Of the latter
the log tells once, with the group's name, step and last vote; a stuck collective ends by its own
time-out, which tells the same. If the thread dies every handle fails at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from types import TracebackType
from typing import Self, TypeVar

from engine.engine import EngineFailed, LLMEngine
from engine.plan import StepKind
from engine.request import (
    ChunkDone,
    DuplicateRequest,
    EngineError,
    EngineEvent,
    EngineRequest,
    QueueFull,
    RequestFailed,
    TokenOut,
    is_final,
)
from engine.statistics import EngineStatistics

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How often statistics are renewed while steps follow each other; they cost a walk over the queues.
_SNAPSHOT_INTERVAL_S = 0.05
# Pause of the step loop when there is work that nobody can run now.
_STALLED_WAIT_S = 0.002


class EngineStopped(EngineError):
    """The engine takes no more requests: it is not started, draining, stopped, or dead."""

    cause = "engine_stopped"


class RequestHandle:
    """One live request: an async context manager and an async iterator of its events.

    Belongs to the event loop thread and to one reader. After the last event of the request (see
    `is_final`) the iteration ends. Leaving the context before that aborts the request; leaving
    does not wait for the engine thread.
    """

    def __init__(self, owner: AsyncEngine, request_id: str, queue_events: int) -> None:
        self.request_id = request_id
        self.context = copy_context()
        self._owner = owner
        self._high = queue_events
        self._low = queue_events // 2
        self._events: deque[EngineEvent] = deque()
        self._arrived = asyncio.Event()
        self._is_paused = False
        self._is_final = False
        self._error: EngineError | None = None
        self._started_at: float | None = None

    @property
    def started_at(self) -> float | None:
        """When the step began that first computed for it, on the engine's clock; None before."""
        return self._started_at

    async def __aenter__(self) -> Self:
        """Nothing to do: the request was posted by `submit`."""
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Aborts the request unless it is over."""
        self.close()

    def close(self) -> None:
        """Aborts the request unless it is over, and drops unread events. Twice is harmless."""
        if not self._is_final:
            self._owner._leave(self)
        self._is_final = True
        self._events.clear()
        self._arrived.set()

    def __aiter__(self) -> Self:
        """The handle is its own iterator."""
        return self

    async def __anext__(self) -> EngineEvent:
        """Returns the next event.

        Raises:
            StopAsyncIteration: the last event was returned, or the handle was closed.
            EngineError: the engine died.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            if self._is_final:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        self._resume()
        return event

    def take_ready(self) -> list[EngineEvent]:
        """Returns the events that are there already, in order, without waiting."""
        events = list(self._events)
        self._events.clear()
        self._resume()
        return events

    def _resume(self) -> None:
        if self._is_paused and len(self._events) <= self._low:
            self._is_paused = False
            self._owner._pause(self, False)

    def _deliver(self, event: EngineEvent) -> None:
        if self._is_final:
            return
        self._events.append(event)
        self._is_final = is_final(event)
        if not self._is_paused and not self._is_final and len(self._events) >= self._high:
            self._is_paused = True
            self._owner._pause(self, True)
        self._arrived.set()

    def _fail(self, error: EngineError) -> None:
        if not self._is_final:
            self._error = error
            self._is_final = True
            self._arrived.set()


class AsyncEngine:
    """Runs an `LLMEngine` in a thread of its own for callers in an event loop.

    Args:
        engine: owned from now on; nobody else may touch it.
        clock: seconds, monotonic, from any thread.
        queue_events: unread events at which a request is paused.
        idle_wait_s: longest sleep of an idle step loop; a new request ends it at once.
        stall_limit_s: age of the last progress above which the engine is not healthy; above the
            longest step and the time-out of collectives.
        on_step: told how many seconds a step with sequences took, and for each of them the context
            variables it was submitted with; called on the engine thread, so it must be quick.
            Placeholder steps are not told.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        clock: Callable[[], float],
        queue_events: int = 256,
        idle_wait_s: float = 0.5,
        stall_limit_s: float = 60.0,
        on_step: Callable[[float, Sequence[Context]], None] | None = None,
    ) -> None:
        if queue_events < 2:
            raise ValueError(f"queue_events is {queue_events}: give at least 2")
        self._engine = engine
        self._clock = clock
        self._queue_events = queue_events
        self._idle_wait_s = idle_wait_s
        self._stall_limit_s = stall_limit_s
        self._on_step = on_step
        # Written by the event loop, emptied by the engine thread; a deque is safe for that.
        self._commands: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name="engine-step-loop", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_accepting = False
        self._is_abandoned = False
        self._failure: EngineFailed | None = None
        self._last_progress = clock()
        self._snapshot = engine.statistics()
        self._snapshot_at = self._last_progress
        self._turn_began = self._last_progress
        self._is_stall_told = False
        # Event loop thread: handles not yet over. Engine thread: to whom events go.
        self._open: dict[str, RequestHandle] = {}
        self._live: dict[str, RequestHandle] = {}
        self._questions: set[asyncio.Future[bool]] = set()
        self._complete = asyncio.Event()
        self._all_over = asyncio.Event()
        self._all_over.set()

    def start(self) -> None:
        """Starts the step loop; to be called once, in the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._last_progress = self._clock()
        self._is_accepting = True
        self._thread.start()

    async def wait_complete(self) -> None:
        """Returns once the step loop has agreed with those of the whole group for the first time.

        Waits for ever if the step loop dies before.
        """
        await self._complete.wait()

    async def stop(self, *, drain_s: float = 0.0, timeout_s: float = 10.0) -> None:
        """Refuses new requests, lets live ones finish for `drain_s`, aborts the rest, ends.

        All ranks of a lockstep group must stop within `timeout_s` of each other: a rank that is
        ready to leave goes on serving its peers until all are, and leaves alone after that.

        Raises:
            EngineFailed: the step loop did not end in time.
        """
        self._is_accepting = False
        if self._loop is None or not self._thread.is_alive():
            return
        if self._open and drain_s > 0:
            try:
                async with asyncio.timeout(drain_s):
                    await self._all_over.wait()
            except TimeoutError:
                logger.warning("drain ended with %d live requests", len(self._open))
        for handle in list(self._open.values()):
            self._post_abort(handle)
        self._post(self._engine.request_stop)
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():
            self._is_abandoned = True
            self._engine.ring()
            raise EngineFailed(f"the step loop did not end within {timeout_s:g} s")

    def check(self, request: EngineRequest) -> None:
        """Checks a request as `submit` will, before work is spent on it; see `LLMEngine.check`."""
        self._engine.check(request)

    def submit(self, request: EngineRequest) -> RequestHandle:
        """Posts a request; use the handle with `async with`. Event loop thread.

        Raises:
            EngineStopped: the engine does not accept requests.
            InvalidRequest, PoolFull: as `LLMEngine.check`.
            DuplicateRequest: a request of this id is live.
            QueueFull: too many requests are live.
        """
        self._require_accepting()
        if request.request_id in self._open:
            raise DuplicateRequest(
                f"request {request.request_id!r} is live: abort it or choose another id"
            )
        settings = self._engine.settings
        most = settings.max_num_seqs + settings.max_waiting
        if len(self._open) >= most:
            raise QueueFull(
                f"{len(self._open)} requests are live, the bound is max_num_seqs + max_waiting = "
                f"{most}: try later or elsewhere"
            )
        self._engine.check(request)
        handle = RequestHandle(self, request.request_id, self._queue_events)
        self._open[request.request_id] = handle
        self._all_over.clear()
        # The handle does not keep the request: its image would live as long as the stream.
        self._post(lambda: self._add(handle, request))
        return handle

    async def try_reserve(self, reservation_id: str, num_tokens: int) -> bool:
        """Keeps a slot and room for a request to come; see `Scheduler.try_reserve`."""
        return await self._ask(lambda: self._engine.try_reserve(reservation_id, num_tokens))

    async def release_reservation(self, reservation_id: str) -> bool:
        """Gives reserved room back; False when there is none of that name."""
        return await self._ask(lambda: self._engine.release_reservation(reservation_id))

    def statistics(self) -> EngineStatistics:
        """Returns the latest snapshot of the engine thread, at most a few steps old."""
        return self._snapshot

    @property
    def failure(self) -> EngineFailed | None:
        """Why the step loop ended for good; None while it has not."""
        return self._failure

    def progress_age_s(self) -> float:
        """Returns the age of the last step, or of the last look at an empty queue."""
        return self._clock() - self._last_progress

    def is_healthy(self) -> bool:
        """Says whether the step loop lives and makes progress."""
        return (
            self._thread.is_alive()
            and self._failure is None
            and self.progress_age_s() < self._stall_limit_s
        )

    # Event loop thread.

    def _require_accepting(self) -> None:
        if self._failure is not None:
            raise EngineStopped(f"the engine died: {self._failure}") from self._failure
        if not self._is_accepting:
            raise EngineStopped("the engine is not started, draining or stopped: go elsewhere")

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._engine.ring()

    async def _ask(self, question: Callable[[], bool]) -> bool:
        self._require_accepting()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()

        def settle(value: bool) -> None:
            if not answer.done():
                answer.set_result(value)

        self._questions.add(answer)
        self._post(lambda: self._call_loop(settle, question()))
        try:
            return await answer
        finally:
            self._questions.discard(answer)

    def _leave(self, handle: RequestHandle) -> None:
        self._post_abort(handle)
        self._forget(handle)

    def _post_abort(self, handle: RequestHandle) -> None:
        self._post(lambda: self._abort(handle))

    def _pause(self, handle: RequestHandle, paused: bool) -> None:
        self._post(lambda: self._set_paused(handle, paused))

    def _forget(self, handle: RequestHandle) -> None:
        if self._open.get(handle.request_id) is handle:
            del self._open[handle.request_id]
            if not self._open:
                self._all_over.set()

    def _deliver(self, batch: list[tuple[RequestHandle, EngineEvent]]) -> None:
        for handle, event in batch:
            handle._deliver(event)
            if is_final(event):
                self._forget(handle)

    def _fail_all(self, error: EngineFailed) -> None:
        for handle in list(self._open.values()):
            handle._fail(error)
            self._forget(handle)
        for answer in self._questions:
            if not answer.done():
                answer.set_exception(error)

    # Engine thread.

    def _run(self) -> None:
        try:
            while not (self._engine.is_stop_agreed or self._is_abandoned):
                self._turn()
        except BaseException as error:
            failure = error if isinstance(error, EngineFailed) else EngineFailed(repr(error))
            self._failure = failure
            logger.exception("the step loop died")
            self._call_loop(self._fail_all, failure)

    def _turn(self) -> None:
        now = self._turn_began = self._clock()
        while self._commands:
            self._commands.popleft()()
            # Reported before the next command, which may use the same request id again.
            self._publish(self._engine.take_events())
        step_began = self._clock()
        decision, events = self._engine.step()
        if self._on_step is not None:
            contexts = [
                self._live[event.request_id].context
                for event in events
                if isinstance(event, ChunkDone | TokenOut)
            ]
            if contexts:
                self._on_step(self._clock() - step_began, contexts)
        if not self._complete.is_set():
            self._call_loop(asyncio.Event.set, self._complete)
        self._publish(events)
        is_resting = decision.step_kind is StepKind.NONE
        if decision.idle or not is_resting:
            self._last_progress = self._clock()
            self._is_stall_told = False
        elif not self._is_stall_told and self.progress_age_s() >= self._stall_limit_s:
            self._is_stall_told = True
            logger.error(
                "no step for %g s although there is work, %d rounds: %s",
                self.progress_age_s(),
                decision.stalled_rounds,
                self._engine.describe_progress(),
            )
        if is_resting or now - self._snapshot_at >= _SNAPSHOT_INTERVAL_S:
            self._snapshot = self._engine.statistics()
            self._snapshot_at = now
        if is_resting and not self._engine.is_stop_agreed:
            # With commands waiting too: their ring ends it at once, and brings the peers along.
            self._engine.wait_for_work(self._idle_wait_s if decision.idle else _STALLED_WAIT_S)

    def _add(self, handle: RequestHandle, request: EngineRequest) -> None:
        self._live[handle.request_id] = handle
        try:
            self._engine.add(request)
        except Exception as error:
            # Whatever a request brings along, it must not cost the step loop.
            self._publish([RequestFailed(request_id=handle.request_id, error=error)])

    def _abort(self, handle: RequestHandle) -> None:
        if self._live.get(handle.request_id) is handle:
            self._engine.abort(handle.request_id)

    def _set_paused(self, handle: RequestHandle, paused: bool) -> None:
        if self._live.get(handle.request_id) is handle:
            self._engine.set_paused(handle.request_id, paused)

    def _publish(self, events: list[EngineEvent]) -> None:
        batch = []
        for event in events:
            handle = self._live[event.request_id]
            if handle._started_at is None and isinstance(event, ChunkDone | TokenOut):
                handle._started_at = self._turn_began
            batch.append((handle, event))
            if is_final(event):
                del self._live[event.request_id]
        if batch:
            self._call_loop(self._deliver, batch)

    def _call_loop(self, function: Callable[[T], None], argument: T) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            # The loop is closed: nobody is left to tell.
            logger.debug("event loop closed before its events arrived")
