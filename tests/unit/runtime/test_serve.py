"""The server of a process over a real loopback connection: errors, cancellation, health, drain.

`EchoService` stands for any service of ours; its methods are registered by hand, so the tests say
nothing about the wire contract.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from runtime import errors, serve, status
from runtime.channel import open_channel
from runtime.clock import SystemClock
from runtime.errors import ErrorMap, Reason
from runtime.metrics import Metrics
from runtime.serve import (
    DrainSettings,
    Host,
    ListenError,
    ListenSettings,
    StopSignals,
    check_addresses,
)
from tests.fakes.addresses import require_ipv6

SERVICE = "test.v1.EchoService"
TIMEOUT_S = 10.0

# health, reflection and the messages below need no types here
Unary = Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]


class StoreDown(Exception):
    pass


class Echo:
    """Handlers that fail in every way a handler can."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.release = asyncio.Event()

    async def unary(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self.fail(request.decode(), context)
        return request

    async def stream(
        self, request: bytes, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        yield b"first"
        await self.fail(request.decode(), context)
        yield b"last"

    async def flood(
        self, _request: bytes, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        try:
            for _ in range(100_000):
                self.entered.set()
                yield b"x" * 65536
        finally:
            self.events.append("closed")
            self.left.set()

    async def hold(self, request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        self.entered.set()
        try:
            await self.release.wait()
            self.events.append("finished")
            return request
        except asyncio.CancelledError:
            self.events.append("cancelled")
            raise
        finally:
            self.left.set()

    async def fail(self, how: str, context: grpc.aio.ServicerContext) -> None:
        match how:
            case "known":
                raise errors.Overloaded("full", reason=Reason.POOL_FULL, retry_after_s=0.5)
            case "library":
                raise StoreDown("no route")
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.raise_store_down())
            case "bug":
                raise KeyError("a secret path")
            case "abort":
                await context.abort(grpc.StatusCode.NOT_FOUND, "by hand")
            case "swallow":
                try:
                    await context.abort(grpc.StatusCode.NOT_FOUND, "by hand")
                except Exception as error:
                    raise RuntimeError("afterwards") from error
            case "downstream":
                wire = status.to_status(errors.Corrupt("bad byte"))
                raise grpc.aio.AioRpcError(
                    wire.code,
                    grpc.aio.Metadata(),
                    grpc.aio.Metadata(*wire.trailing_metadata),
                    details=wire.details,
                )

    async def raise_store_down(self) -> None:
        raise StoreDown("no route")


class Rig:
    """A running host with one Echo and a channel to it."""

    def __init__(self, host: Host, echo: Echo, metrics: Metrics, channel: grpc.aio.Channel) -> None:
        self.host, self.echo, self.metrics, self.channel = host, echo, metrics, channel

    def call(self, method: str, request: bytes, **options: object) -> grpc.aio.UnaryUnaryCall:
        return self.channel.unary_unary(f"/{SERVICE}/{method}")(
            request, timeout=TIMEOUT_S, **options
        )

    def stream(self, method: str, request: bytes) -> grpc.aio.UnaryStreamCall:
        return self.channel.unary_stream(f"/{SERVICE}/{method}")(request, timeout=TIMEOUT_S)


@asynccontextmanager
async def running(
    drain: DrainSettings | None = None, listen: ListenSettings | None = None
) -> AsyncIterator[Rig]:
    table = ErrorMap()
    table.register(
        StoreDown, lambda error: errors.Unavailable(str(error), reason=Reason.STORE_DOWN)
    )
    metrics = Metrics()
    host = Host(
        role="decode",
        clock=SystemClock(),
        metrics=metrics,
        work=frozenset({f"/{SERVICE}/Unary", f"/{SERVICE}/Hold", f"/{SERVICE}/Flood"}),
        services=[SERVICE],
        listen=listen or ListenSettings(),
        drain=drain or DrainSettings(propagation_s=0.0),
        errors=table,
    )
    echo = Echo()
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(echo.unary),
        "Hold": grpc.unary_unary_rpc_method_handler(echo.hold),
        "Stream": grpc.unary_stream_rpc_method_handler(echo.stream),
        "Flood": grpc.unary_stream_rpc_method_handler(echo.flood),
    }
    host.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    address = await host.start()
    try:
        async with open_channel(address) as channel:
            yield Rig(host, echo, metrics, channel)
    finally:
        await host.stop(0)


async def failure(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def collect(call: grpc.aio.UnaryStreamCall, got: list[bytes]) -> None:
    async for message in call:
        got.append(message)


def test_server_options_are_exactly_these() -> None:
    assert dict(serve.SERVER_OPTIONS) == {
        "grpc.max_receive_message_length": 16777216,
        "grpc.max_send_message_length": 16777216,
        "grpc.http2.min_ping_interval_without_data_ms": 10000,
        "grpc.http2.max_ping_strikes": 0,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.so_reuseport": 0,
    }
    assert dict(serve.BALANCER_OPTIONS)["grpc.max_connection_age_ms"] == 300000
    assert not [key for key, _ in serve.BALANCER_OPTIONS if "age_grace" in key]


async def test_a_good_call_passes_and_is_timed() -> None:
    async with running() as rig:
        assert await rig.call("Unary", b"hello") == b"hello"
        labels = {"rpc_method": f"{SERVICE}/Unary", "rpc_response_status_code": "OK"}
        assert rig.metrics.value("rpc_server_call_duration_seconds", **labels) == 1


@pytest.mark.parametrize(
    ("how", "code", "reason", "text"),
    [
        (b"known", "RESOURCE_EXHAUSTED", "POOL_FULL", "full"),
        (b"library", "UNAVAILABLE", "STORE_DOWN", "no route"),
        (b"group", "UNAVAILABLE", "STORE_DOWN", "no route"),
        (b"downstream", "DATA_LOSS", "CHECKSUM_DIFFERS", "bad byte"),
    ],
)
@pytest.mark.parametrize("kind", ["Unary", "Stream"])
async def test_known_errors_arrive_with_their_reason(
    kind: str, how: bytes, code: str, reason: str, text: str
) -> None:
    async with running() as rig:
        got: list[bytes] = []
        if kind == "Unary":
            error = await failure(rig.call("Unary", how, metadata=(("x-request-id", "r-7"),)))
        else:
            error = await failure(collect(rig.stream("Stream", how), got))
            assert got == [b"first"]
        assert (error.code().name, error.details()) == (code, text)
        proto = rpc_status.from_call(error)
        info = error_details_pb2.ErrorInfo()
        assert proto.details[0].Unpack(info)
        assert (info.reason, info.domain) == (reason, "disagg")
        request = error_details_pb2.RequestInfo()
        if kind == "Unary":
            assert proto.details[-1].Unpack(request)
            assert request.request_id == "r-7"
        assert status.from_rpc_error(error).reason == reason


@pytest.mark.parametrize("kind", ["Unary", "Stream"])
async def test_an_unknown_exception_tells_nothing_but_an_incident(kind: str) -> None:
    async with running() as rig:
        call = rig.call(kind, b"bug") if kind == "Unary" else collect(rig.stream(kind, b"bug"), [])
        error = await failure(call)
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(error.details()) and "KeyError" not in str(error.details())
        known = status.from_rpc_error(error)
        assert known.reason is Reason.INVARIANT_BROKEN
        assert known.metadata["incident"] in known.message
        assert rig.metrics.value("disagg_internal_errors_total", method=f"{SERVICE}/{kind}") == 1


@pytest.mark.parametrize("how", [b"abort", b"swallow"])
@pytest.mark.parametrize("kind", ["Unary", "Stream"])
async def test_an_abort_by_hand_stands(kind: str, how: bytes) -> None:
    async with running() as rig:
        call = rig.call(kind, how) if kind == "Unary" else collect(rig.stream(kind, how), [])
        error = await failure(call)
        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "by hand")


async def test_an_unknown_method_is_unimplemented() -> None:
    async with running() as rig:
        error = await failure(rig.call("Nothing", b""))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_cancelled_call_cancels_its_handler() -> None:
    async with running() as rig:
        call = rig.call("Hold", b"")
        await rig.echo.entered.wait()
        call.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            await rig.echo.left.wait()
        assert rig.echo.events == ["cancelled"]
        assert rig.host.running == 0


async def test_a_generator_is_closed_when_its_caller_leaves_while_it_sends() -> None:
    async with running() as rig:
        call = rig.stream("Flood", b"")
        await rig.echo.entered.wait()
        call.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            await rig.echo.left.wait()
        assert rig.echo.events == ["closed"]


async def test_a_passed_deadline_cancels_the_handler() -> None:
    async with running() as rig:
        error = await failure(rig.channel.unary_unary(f"/{SERVICE}/Hold")(b"", timeout=0.05))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(TIMEOUT_S):
            await rig.echo.left.wait()
        assert rig.echo.events == ["cancelled"]


async def test_health_names_and_reflection_are_served() -> None:
    async with running() as rig:
        stub = health_pb2_grpc.HealthStub(rig.channel)

        async def check(name: str) -> int:
            request = health_pb2.HealthCheckRequest(service=name)
            return (await stub.Check(request, timeout=TIMEOUT_S)).status

        serving, not_serving = 1, 2
        assert [await check(name) for name in ("", "liveness")] == [serving] * 2
        assert [await check(name) for name in ("startup", "readiness", SERVICE)] == [
            not_serving
        ] * 3
        await rig.host.health.report(True, "loaded")
        assert await check(SERVICE) == serving
        error = await failure(check("unknown"))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        reflection = reflection_pb2_grpc.ServerReflectionStub(rig.channel)
        call = reflection.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=TIMEOUT_S
        )
        names = [
            service.name async for reply in call for service in reply.list_services_response.service
        ]
        assert SERVICE in names and "grpc.health.v1.Health" in names


async def test_a_health_watch_ends_with_the_server() -> None:
    async with running() as rig:
        stub = health_pb2_grpc.HealthStub(rig.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"), timeout=TIMEOUT_S)
        assert (await watch.read()).status == 2
        await rig.host.health.report(True, "loaded")
        assert (await watch.read()).status == 1
        await rig.host.begin_drain()
        assert (await watch.read()).status == 2


async def test_a_taken_port_is_refused_with_a_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            async with running(listen=ListenSettings(port=port)):
                pass


async def test_the_address_at_an_ipv6_number_is_one_that_clients_dial() -> None:
    require_ipv6()
    async with running(listen=ListenSettings(host="::1")) as rig:
        assert rig.host.address.startswith("[::1]:")
        assert await rig.call("Unary", b"hello") == b"hello"
        port = int(rig.host.address.rpartition(":")[2])
        with pytest.raises(ListenError, match=rf"cannot listen on \[::1\]:{port}: taken"):
            check_addresses(ListenSettings(host="::1", port=port), 1)


async def test_a_draining_host_refuses_work_and_answers_the_rest() -> None:
    async with running() as rig:
        await rig.host.health.report(True, "loaded")
        await rig.host.begin_drain()
        error = await failure(rig.call("Unary", b"x"))
        known = status.from_rpc_error(error)
        assert (known.reason, known.retry_after_s) == (Reason.DRAINING, 0.0)
        got: list[bytes] = []
        await collect(rig.stream("Stream", b"x"), got)  # not declared as work
        assert got == [b"first", b"last"]
        await rig.host.end_drain()
        assert await rig.call("Unary", b"x") == b"x"


async def test_admitted_work_ends_before_the_server_closes() -> None:
    async with running() as rig, asyncio.TaskGroup() as group:
        held = rig.call("Hold", b"kept")
        await rig.echo.entered.wait()
        stop = StopSignals()
        drained: list[int] = []

        async def on_drain() -> None:
            drained.append(rig.host.running)
            rig.echo.release.set()

        stop.request()
        task = group.create_task(rig.host.run_until_stopped(stop, on_drain=on_drain))
        assert await held == b"kept"
        await task
        assert drained == [1]
        assert rig.echo.events == ["finished"]
        error = await failure(rig.call("Unary", b"x"))
        assert status.from_rpc_error(error).reason is Reason.PEER_GONE


async def test_work_that_never_ends_is_cut_after_the_limit() -> None:
    limits = DrainSettings(propagation_s=0.0, max_s=0.05, grace_s=0.0)
    async with running(limits) as rig:
        held = rig.call("Hold", b"")
        await rig.echo.entered.wait()
        stop = StopSignals()
        stop.request()
        await rig.host.run_until_stopped(stop)
        error = await failure(held)
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        async with asyncio.timeout(TIMEOUT_S):
            await rig.echo.left.wait()
        assert rig.echo.events == ["cancelled"]


async def test_a_second_request_skips_the_waiting() -> None:
    limits = DrainSettings(propagation_s=1000.0, max_s=1000.0)
    async with running(limits) as rig:
        stop = StopSignals()
        stop.request()
        stop.request()
        async with asyncio.timeout(TIMEOUT_S):
            await rig.host.run_until_stopped(stop)
        assert rig.host.is_draining


async def test_a_failing_hook_still_closes_the_server() -> None:
    async with running() as rig:
        stop = StopSignals()
        stop.request()

        async def on_drain() -> None:
            raise ZeroDivisionError("bug")

        with pytest.raises(ExceptionGroup) as caught:
            await rig.host.run_until_stopped(stop, on_drain=on_drain)
        assert caught.group_contains(ZeroDivisionError)
        error = await failure(rig.call("Unary", b"x"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_signals_ask_to_stop() -> None:
    stop = StopSignals()
    with stop.installed():
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(TIMEOUT_S):
            await stop.drain.wait()
        assert not stop.hurry.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(TIMEOUT_S):
            await stop.hurry.wait()


def test_addresses_of_a_group_are_checked_before_it_is_started() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{taken}: .*--port"):
            check_addresses(ListenSettings(port=taken - 1), 2)
        check_addresses(ListenSettings(port=0), 2)
    check_addresses(ListenSettings(port=taken), 1)


def test_a_group_whose_ports_run_out_is_refused() -> None:
    with pytest.raises(ListenError, match=r"cannot listen on 127\.0\.0\.1:65536"):
        check_addresses(ListenSettings(port=65536 - 512), 513)
