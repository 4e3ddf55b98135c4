"""The life of one serving process that announces itself: serve, report, announce, drain.

Around a `runtime.serve.Host` run the loop that asks the service how it is and tells health, and one
heartbeat per receiver. They are children of one task group: a bug in any of them, or a service that
says it is broken for good, ends the process with an error instead of leaving half of it alive.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from runtime.logging import get_logger
from runtime.loop_watch import watch_loop
from runtime.offload import offload
from runtime.serve import Host, StopSignals

_log = get_logger(__name__)


class Announcing(Protocol):
    """Heartbeats to one receiver or to several."""

    async def run(self) -> None:
        """Announces for ever."""
        ...

    def announce_now(self) -> None:
        """Sends the next announcement at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How a service is.

    Args:
        is_live: Its loops turn; False makes liveness fail.
        is_ready: It could take new work.
        cause: A short fixed word for why not, or `ok`.
        fatal: Why it can never work again; ends the process.
    """

    is_live: bool = True
    is_ready: bool = True
    cause: str = "ok"
    fatal: Exception | None = None


class Examiner:
    """Tells the condition of a service from its step loop and the one dependency it needs.

    Args:
        is_turning: Whether the step loop makes progress.
        failure: Why the step loop ended for good, or None.
        dependency: A short fixed word for the dependency, e.g. `store`.
        ping: Asks the dependency for a sign of life; blocking, raises if there is none.
        executor: Where `ping` runs.
        timeout_s: Seconds `ping` may take.
    """

    def __init__(
        self,
        *,
        is_turning: Callable[[], bool],
        failure: Callable[[], Exception | None],
        dependency: str,
        ping: Callable[[], object],
        executor: Executor,
        timeout_s: float = 1.0,
    ) -> None:
        self._is_turning = is_turning
        self._failure = failure
        self._dependency = dependency
        self._ping = ping
        self._executor = executor
        self._timeout_s = timeout_s

    async def __call__(self) -> Condition:
        """Returns the condition now; see `run_member`."""
        failure = self._failure()
        if failure is not None:
            return Condition(is_live=False, is_ready=False, cause="loop_failed", fatal=failure)
        if not self._is_turning():
            return Condition(is_live=False, is_ready=False, cause="loop_stuck")
        try:
            async with asyncio.timeout(self._timeout_s):
                await offload(self._executor, self._ping, cleanup_s=0.0)
        except Exception as error:
            # Whatever the dependency raises means that it cannot be used now.
            _log.debug("dependency.down", dependency=self._dependency, error=str(error))
            return Condition(is_ready=False, cause=f"{self._dependency}_down")
        return Condition()


async def run_member(
    host: Host,
    *,
    stop: StopSignals,
    examine: Callable[[], Awaitable[Condition]],
    heartbeats: Sequence[Announcing] = (),
    interval_s: float = 0.5,
    on_drain: Callable[[], Awaitable[None]] | None = None,
    on_turn: Callable[[], None] | None = None,
) -> None:
    """Runs a started host until it is asked to stop.

    Args:
        host: Listens already, with all servicers registered.
        stop: What asks to drain, and to hurry.
        examine: How the service is; called every `interval_s` seconds, bounded by its own limits.
        heartbeats: One per receiver.
        interval_s: Seconds between two examinations.
        on_drain: See `Host.run_until_stopped`.
        on_turn: See `watch_loop`.

    Raises:
        Exception: What `examine` reported as fatal, after the server was closed.
    """
    try:
        async with asyncio.TaskGroup() as group:
            attendants = [
                group.create_task(_attend(host, examine, interval_s)),
                group.create_task(watch_loop(host.metrics, host.role, on_turn=on_turn)),
                group.create_task(_announce_drain(stop, heartbeats)),
                *(group.create_task(heartbeat.run()) for heartbeat in heartbeats),
            ]
            try:
                await host.run_until_stopped(stop, on_drain=on_drain)
            finally:
                for task in attendants:
                    task.cancel()
    except BaseExceptionGroup as errors:
        await host.stop(0)
        # One cause explains the end better than the group it came in.
        raise errors.exceptions[0] from errors


async def _attend(
    host: Host, examine: Callable[[], Awaitable[Condition]], interval_s: float
) -> None:
    await host.health.set_started()
    while True:
        host.security.refresh()
        condition = await examine()
        await host.health.set_live(condition.is_live)
        await host.health.report(condition.is_ready, condition.cause)
        if condition.fatal is not None:
            await host.begin_drain()
            raise condition.fatal
        await asyncio.sleep(interval_s)


async def _announce_drain(stop: StopSignals, heartbeats: Sequence[Announcing]) -> None:
    """Receivers must not send new work for one more interval."""
    await stop.drain.wait()
    # The host closes its gate in the same turn of the loop or the next; announce after it.
    await asyncio.sleep(0)
    for heartbeat in heartbeats:
        heartbeat.announce_now()
