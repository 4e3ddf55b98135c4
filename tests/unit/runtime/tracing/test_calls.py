"""The server span of a call, through a real server with all interceptors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from runtime.clock import SystemClock
from runtime.errors import Unavailable
from runtime.metrics import Metrics
from runtime.serve import DrainSettings, Host, ListenSettings
from runtime.telemetry import NO_TRACER, Tracer, current
from tests.fakes.spans import Recorded, facts, parent_id, recorded

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class _Service(grpc.GenericRpcHandler):
    """`t.S/Work` and `t.S/Look`: what the request says happens."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if not details.method.startswith("/t.S/"):
            return None
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, _context: object) -> bytes:
        if request == b"fail":
            raise Unavailable("gone")
        if request == b"bug":
            raise KeyError("secret")
        if request == b"wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        context = current().context
        return b"" if context is None else str(context).encode()


@asynccontextmanager
async def _serving(tracer: Tracer, service: _Service) -> AsyncIterator[grpc.aio.Channel]:
    host = Host(
        role="test",
        clock=SystemClock(),
        metrics=Metrics(),
        work=frozenset({"/t.S/Work"}),
        services=(),
        listen=ListenSettings(reflection=False),
        drain=DrainSettings(),
        tracer=tracer,
    )
    host.server.add_generic_rpc_handlers((service,))
    address = await host.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await host.stop(0)


async def _ask(found: Recorded, request: bytes, *, method: str = "Work", **metadata: str) -> bytes:
    async with _serving(found.tracer, _Service()) as channel:
        call = channel.unary_unary(f"/t.S/{method}")
        keys = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        return bytes(await call(request, metadata=keys, timeout=5))


async def test_work_is_a_server_span_below_the_caller() -> None:
    found = recorded()
    seen = await _ask(found, b"", traceparent=PARENT, x_request_id="r-1")
    span = found.one("t.S/Work")
    assert span.kind is SpanKind.SERVER
    assert seen.decode() == f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"
    assert parent_id(span) == "b7ad6b7169203331"
    said = facts(span)
    assert str(said.pop("network.peer.address")).startswith("ipv4:127.0.0.1:")
    assert said == {
        "rpc.system.name": "grpc",
        "rpc.method": "t.S/Work",
        "rpc.response.status_code": "OK",
        "disagg.request_id": "r-1",
    }


async def test_what_is_no_work_begins_no_trace_but_goes_on_with_one() -> None:
    found = recorded()
    assert await _ask(found, b"", method="Look") == b""
    assert found.spans == ()
    await _ask(found, b"", method="Look", traceparent=PARENT)
    assert parent_id(found.one("t.S/Look")) == "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("request_", "code", "said"),
    [(b"fail", "UNAVAILABLE", "PEER_GONE"), (b"bug", "INTERNAL", "KeyError")],
)
async def test_failures_have_code_and_reason(request_: bytes, code: str, said: str) -> None:
    found = recorded()
    with pytest.raises(grpc.aio.AioRpcError):
        await _ask(found, request_)
    span = found.one("t.S/Work")
    assert facts(span)["rpc.response.status_code"] == code
    assert facts(span)["error.type"] == said
    assert span.status.status_code is StatusCode.ERROR


async def test_a_caller_that_leaves_ends_the_span_without_an_error() -> None:
    found, service = recorded(), _Service()
    async with _serving(found.tracer, service) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/t.S/Work")(b"wait", timeout=0.2)
        await service.left.wait()
    span = found.one("t.S/Work")
    assert facts(span)["disagg.cancelled"] is True
    assert span.status.status_code is StatusCode.UNSET


async def test_a_process_that_exports_nothing_has_no_interceptor_for_it() -> None:
    async with _serving(NO_TRACER, _Service()) as channel:
        answer = await channel.unary_unary("/t.S/Work")(
            b"", metadata=[("traceparent", PARENT)], timeout=5
        )
    assert answer == b""
