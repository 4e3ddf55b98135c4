"""One gRPC server of one process: options, interceptors, health, reflection, drain.

    new ──start──► serving ──drain──► draining ──stop──► stopped
                      ▲                  │
                      └────undrain───────┘

Order of a stop: not ready, new work refused while clients notice, admitted work runs to its end,
the server closes, the caller closes what it owns. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health as grpc_health_names
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from runtime.address import address_of, family_of
from runtime.channel import BULK_OPTIONS, MESSAGE_OPTIONS, Option
from runtime.clock import Clock
from runtime.errors import ErrorMap
from runtime.health import Health
from runtime.interceptors import WorkGate, call_timer, exception_mapper
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.security import NO_SECURITY, Security
from runtime.settings import Settings, setting
from runtime.telemetry import NO_TRACER, Tracer
from runtime.tracing.calls import call_tracer

_log = get_logger(__name__)

SERVER_OPTIONS: Final[tuple[Option, ...]] = (
    *MESSAGE_OPTIONS,
    # Gateways ping every 30 s while idle; without these they are sent away (too_many_pings).
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # On by default under Linux: two processes would share one port in silence.
    ("grpc.so_reuseport", 0),
)
BALANCER_OPTIONS: Final[tuple[Option, ...]] = (
    *SERVER_OPTIONS,
    # Spreads clients over replicas again; the grace stays infinite, or live streams would be cut.
    ("grpc.max_connection_age_ms", 300_000),
)
BULK_SERVER_OPTIONS: Final[tuple[Option, ...]] = (*SERVER_OPTIONS, *BULK_OPTIONS)


class ListenSettings(Settings):
    """Where a process listens."""

    host: str = setting("127.0.0.1", help="address to listen on", flag="--host")
    port: int = setting(0, help="port of rank 0; 0 picks a free one", flag="--port", ge=0, le=65535)
    reflection: bool = setting(True, help="offer gRPC server reflection")
    max_concurrent_calls: int = setting(
        1024, help="calls served at once; the last line of defence", ge=1
    )


class DrainSettings(Settings):
    """How a process stops."""

    propagation_s: float = setting(
        0.2, help="seconds to keep listening while clients notice the drain", ge=0
    )
    max_s: float = setting(30.0, help="seconds that admitted work may still run", ge=0)
    grace_s: float = setting(1.0, help="seconds the server waits for its last calls", ge=0)


class ListenError(OSError):
    """The address cannot be listened on."""


def _refusal(address: str) -> ListenError:
    return ListenError(
        f"cannot listen on {address}: taken, or not an address of this machine; "
        "choose another --port or 0"
    )


def check_addresses(listen: ListenSettings, num_ranks: int) -> None:
    """Check that each rank of a group could take its address: port + rank, or any if it is 0.

    For a clear word before a group is started; a rank that takes its address can still fail.

    Raises:
        ListenError: an address is taken or not of this machine.
    """
    if not listen.port:
        return
    family = family_of(listen.host)
    for port in range(listen.port, listen.port + num_ranks):
        try:
            with socket.socket(family) as probe:
                # Connections of an earlier process do not hold the real server up either.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((listen.host, port))
                probe.listen()
        except (OSError, OverflowError) as error:
            raise _refusal(address_of(listen.host, port)) from error


class StopSignals:
    """SIGTERM and SIGINT as two events: the first asks to drain, the second to hurry."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()

    def request(self) -> None:
        """What a signal does; may be called by a program too."""
        (self.hurry if self.drain.is_set() else self.drain).set()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to the signals; only in the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


class Host:
    """The server of one process and everything every process serves.

    Args:
        role: balancer, prefill or decode; label of metrics.
        work: Full method names (`/disagg.v1.DecodeService/Decode`) that are work: refused while
            draining, waited for before the stop.
        services: Full service names, for health and reflection.
        errors: Translates exceptions of libraries.
        options: Server options.
        interceptors: Further ones, inside the mapper.
        security: With TLS, health is served in plaintext as well, on a port of its own.
        for_users: Full names of services that take API keys; the others are for members alone.
        tracer: Begins a span for every call of `work`.
        on_refused: Told what is refused while draining; see `WorkGate`.
    """

    def __init__(
        self,
        *,
        role: str,
        clock: Clock,
        metrics: Metrics,
        work: frozenset[str],
        services: Sequence[str],
        listen: ListenSettings,
        drain: DrainSettings,
        errors: ErrorMap | None = None,
        options: Sequence[Option] = SERVER_OPTIONS,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        security: Security = NO_SECURITY,
        for_users: frozenset[str] = frozenset(),
        tracer: Tracer = NO_TRACER,
        on_refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        table = errors or ErrorMap()
        self._listen = listen
        self._drain_settings = drain
        self._gate = WorkGate(work, on_refused)
        self._services = tuple(services)
        self.health = Health(services, role=role, metrics=metrics)
        self.address = ""
        self.role = role
        self.metrics = metrics
        self.health_address = ""
        self.is_closing = False
        self.security = security
        self.tracer = tracer
        self._health_server: grpc.aio.Server | None = None
        self.server = grpc.aio.server(
            options=list(options),
            maximum_concurrent_rpcs=listen.max_concurrent_calls,
            interceptors=[
                exception_mapper(table, metrics),
                *([call_tracer(tracer, table, work)] if tracer.is_on else ()),
                call_timer(table, metrics, clock),
                *security.guards(for_users),
                self._gate.interceptor,
                *interceptors,
            ],
        )
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self.server)

    @property
    def is_draining(self) -> bool:
        """Whether new work is refused."""
        return self._gate.is_closed

    @property
    def running(self) -> int:
        """Work calls that run."""
        return self._gate.running

    def work(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Count the body as work; for faces that are not gRPC. See `WorkGate.work`."""
        return self._gate.work(what)

    def bind(self) -> str:
        """Take the address without answering on it yet; returns it as host:port.

        Raises:
            ListenError: the address is taken or not of this machine.
        """
        wanted = address_of(self._listen.host, self._listen.port)
        try:
            port = self.security.add_port(self.server, wanted)
        except RuntimeError as error:
            raise _refusal(wanted) from error
        self.address = address_of(self._listen.host, port)
        if self.security.identity is not None:
            self._bind_health()
        return self.address

    async def start(self) -> str:
        """Listen, on the address of `bind` if that was called; returns it as host:port.

        Register all servicers on `server` before.

        Raises:
            ListenError: the address is taken or not of this machine.
        """
        if self._listen.reflection:
            names = (*self._services, grpc_health_names.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self.server)
        if not self.address:
            self.bind()
        await self.health.start()
        await self.server.start()
        if self._health_server is not None:
            await self._health_server.start()
        return self.address

    async def begin_drain(self) -> None:
        """Refuse new work and say so to probes; twice is harmless."""
        self._gate.close()
        await self.health.drain()

    async def end_drain(self) -> None:
        """Take new work again."""
        self._gate.open()
        await self.health.drain(False)

    async def run_until_stopped(
        self,
        stop: StopSignals,
        *,
        on_drain: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        """Serve until asked to stop, then drain and close the server.

        Args:
            stop: What asks; the second request skips the waiting.
            on_drain: Called after the propagation delay, bounded by `drain.max_s`: hand back or
                finish what the service holds.
        """
        await stop.drain.wait()
        _log.info("drain.begun", running=self.running)
        await self.begin_drain()
        settings = self._drain_settings
        if not await _unless(stop.hurry, asyncio.sleep(settings.propagation_s)):
            await self.stop(0)
            return

        async def finish() -> None:
            if on_drain is not None:
                await on_drain()
            await self.wait_until_idle()

        async def bounded() -> None:
            try:
                async with asyncio.timeout(settings.max_s):
                    await finish()
            except TimeoutError:
                _log.warning("drain.late", running=self.running, max_s=settings.max_s)

        finished = False
        try:
            finished = await _unless(stop.hurry, bounded())
        finally:
            await self.stop(settings.grace_s if finished else 0)
        _log.info("drain.done")

    async def wait_until_idle(self) -> None:
        """Wait until no work call runs."""
        idle = asyncio.Event()
        self._gate.when_idle(idle.set)
        await idle.wait()

    async def stop(self, grace_s: float) -> None:
        """Close the server; calls that still run after `grace_s` end with UNAVAILABLE."""
        self.is_closing = True
        await self.server.stop(grace_s)
        if self._health_server is not None:
            await self._health_server.stop(0)

    def _bind_health(self) -> None:
        """Probes of Kubernetes speak no TLS, so they get a port that has nothing but health."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        wanted = address_of(self._listen.host, self.security.health_port)
        try:
            port = server.add_insecure_port(wanted)
        except RuntimeError as error:
            raise ListenError(
                f"cannot listen on {wanted} for health: taken, or not an address of this machine; "
                "choose another tls.health_port or 0"
            ) from error
        self._health_server = server
        self.health_address = address_of(self._listen.host, port)


async def _unless(event: asyncio.Event, work: Awaitable[Any]) -> bool:
    """Run `work` to its end, or cancel it when `event` is set; returns whether it ended."""

    async def watch() -> None:
        await event.wait()
        raise _Interrupted

    async def run() -> None:
        await work

    ended = True
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(watch())
            worker = group.create_task(run())
            worker.add_done_callback(lambda _done: watcher.cancel())
    except* _Interrupted:
        ended = False
    return ended


class _Interrupted(Exception):
    """The event came first."""
