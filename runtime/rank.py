"""The process of one rank of a group: step loop, server, dependency, heartbeats; start to exit.

    dependency answers ─► address taken ─► step loop runs ─► server answers ─► announced, examined
                                                                                    │ SIGTERM
    exit ◄─ step loop leaves with its group ◄─ server closed ◄─ drained ◄───────────┘

Everything is closed in the reverse order of its opening, whichever step fails. A rank is ready once
its step loop has met those of its peers. So whatever may be refused to one rank alone, such as its
address, comes before its step loop: then no peer is ready either. What the rank serves is the
caller's: it comes as callables and protocols.
"""

import asyncio
import dataclasses
import signal
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from runtime.clock import Clock
from runtime.errors import ErrorMap
from runtime.logging import get_logger
from runtime.member import Announcing, Condition, Examiner, run_member
from runtime.metrics import Metrics
from runtime.offload import offload
from runtime.security import NO_SECURITY, Security
from runtime.serve import DrainSettings, Host, ListenSettings, StopSignals
from runtime.telemetry import NO_TRACER, Tracer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_log = get_logger(__name__)

LEAVE_S = 10.0
"""Seconds beyond the drain in which all ranks of a group leave their step loop together."""
# A rank that fails takes its group down: nobody leaves together any more.
_FAILED_LEAVE_S = 0.5
# How long an examination looks out for the peers; less than the second a probe may take.
_COMPLETE_S = 0.5


def new_member_id(role: str, group: str, rank: int) -> str:
    """A fresh id of a member, as in `decode-0-r3-1f2e3d4c`; it begins with its role.

    Args:
        role, group, rank: What the member is; a group is usually named after its role.
    """
    name = group if group.startswith(f"{role}-") else f"{role}-{group}"
    return f"{name}-r{rank}-{uuid.uuid4().hex[:8]}"


class StepLoop(Protocol):
    """What runs beside the server in a thread of its own."""

    def start(self) -> None:
        """Starts it, in the event loop of the caller; once."""
        ...

    async def stop(self, *, drain_s: float = 0.0, timeout_s: float = 10.0) -> None:
        """Ends it, with its peers; once, after the last call."""
        ...

    async def wait_complete(self) -> None:
        """Returns once the step loops of the whole group run."""
        ...

    def is_healthy(self) -> bool:
        """Says whether it turns; any time."""
        ...

    @property
    def failure(self) -> Exception | None:
        """Why it ended for good, if it did."""
        ...


async def _nothing() -> None:
    """No housekeeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What one rank process is made of.

    Args:
        role: Label of metrics and logs.
        rank: Added to the port, unless that is 0.
        services: Full names of what is served, for health and reflection.
        work: Full method names that are work; see `Host`.
        equip: Registers the servicers on the host's server.
        announce: Heartbeats of the started host.
        dependency: Short fixed word for what the rank cannot work without.
        ping: Asks it for a sign of life; blocking.
        on_tick: Called with each examination, about twice a second; housekeeping.
        security: Of the process.
        tracer: Of the process.
    """

    role: str
    rank: int
    services: Sequence[str]
    work: frozenset[str]
    listen: ListenSettings
    drain: DrainSettings
    errors: ErrorMap
    metrics: Metrics
    clock: Clock
    executor: Executor
    step_loop: StepLoop
    dependency: str
    ping: Callable[[], object]
    equip: Callable[[Host], None]
    announce: Callable[[Host, StopSignals, AsyncExitStack], Sequence[Announcing]]
    on_tick: Callable[[], Awaitable[object]] = _nothing
    security: Security = NO_SECURITY
    tracer: Tracer = NO_TRACER


async def run_rank(plan: RankPlan, *, stop: StopSignals | None = None) -> None:
    """Runs a rank until SIGTERM, or until `stop` asks.

    Raises:
        ListenError: The address cannot be listened on.
        Exception: What `ping` raised at the start, or why the step loop ended for good.
    """
    stop = stop or StopSignals()
    async with AsyncExitStack() as stack:
        # Only SIGTERM: an interrupt at a terminal reaches the supervisor, which passes it on.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.request)
        stack.callback(loop.remove_signal_handler, signal.SIGTERM)
        await offload(plan.executor, plan.ping)
        port = plan.listen.port and plan.listen.port + plan.rank
        host = Host(
            role=plan.role,
            clock=plan.clock,
            metrics=plan.metrics,
            work=plan.work,
            services=plan.services,
            listen=plan.listen.model_copy(update={"port": port}),
            drain=plan.drain,
            errors=plan.errors,
            security=plan.security,
            tracer=plan.tracer,
        )
        plan.equip(host)
        host.bind()
        plan.step_loop.start()
        stack.push_async_exit(_leaving(plan))
        await host.start()
        stack.push_async_callback(host.stop, 0)
        heartbeats = plan.announce(host, stop, stack)
        examiner = Examiner(
            is_turning=plan.step_loop.is_healthy,
            failure=lambda: plan.step_loop.failure,
            dependency=plan.dependency,
            ping=plan.ping,
            executor=plan.executor,
        )

        async def examine() -> Condition:
            await plan.on_tick()
            condition = await examiner()
            if condition.is_ready and not await _is_complete(plan.step_loop):
                return Condition(is_ready=False, cause="group_incomplete")
            return condition

        _log.info("rank.serving", address=host.address, rank=plan.rank)
        await run_member(host, stop=stop, examine=examine, heartbeats=heartbeats)
    _log.info("rank.ended", rank=plan.rank)


def _leaving(
    plan: RankPlan,
) -> Callable[
    [type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[None]
]:
    """Ends the step loop: with its group, or at once when the rank failed."""

    async def leave(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, trace
        if error is None:
            await plan.step_loop.stop(timeout_s=plan.drain.max_s + LEAVE_S)
            return
        try:
            await plan.step_loop.stop(timeout_s=_FAILED_LEAVE_S)
        except Exception as late:
            # The first error is the one to end with.
            _log.warning("rank.left_alone", rank=plan.rank, error=str(late))

    return leave


async def _is_complete(step_loop: StepLoop) -> bool:
    try:
        async with asyncio.timeout(_COMPLETE_S):
            await step_loop.wait_complete()
    except TimeoutError:
        return False
    return True


def gauges(prefix: str, statistics: "DataclassInstance") -> dict[str, float]:
    """The numbers of a statistics object as `prefix.field`; of its mappings a level deeper."""
    values: dict[str, float] = {}
    for field in dataclasses.fields(statistics):
        # A field may hold anything; what is no number is not for the map.
        value: Any = getattr(statistics, field.name)
        if isinstance(value, int | float):
            values[f"{prefix}.{field.name}"] = float(value)
        elif isinstance(value, Mapping):
            for key, inner in value.items():
                if isinstance(inner, int | float):
                    values[f"{prefix}.{field.name}.{key}"] = float(inner)
    return values
