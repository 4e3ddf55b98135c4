"""The pieces around a call that need no connection; the rest is in test_serve.py."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest

from runtime.clock import ManualClock
from runtime.errors import Conflict, ErrorMap, Overloaded, Reason, Unavailable
from runtime.interceptors import (
    Surround,
    WorkGate,
    as_coroutine,
    call_timer,
    request_id_of,
    translate,
)
from runtime.metrics import Metrics

METHOD = "/test.v1.EchoService/Unary"


class Context:
    """As much of a call's context as these pieces use."""

    def __init__(self, metadata: tuple[tuple[str, str], ...] = (), code: object = None) -> None:
        self.metadata = metadata
        self.written: list[bytes] = []
        self.status = code

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    def code(self) -> object:
        return self.status


def handler_of(surround: Surround, behaviour: object, method: str = METHOD) -> object:
    async def continuation(_details: object) -> object:
        return grpc.unary_unary_rpc_method_handler(behaviour)

    details = SimpleNamespace(method=method)
    return asyncio.run(surround.intercept_service(continuation, details)).unary_unary


async def test_a_generator_is_written_out_and_closed() -> None:
    closed = []

    async def generate(request: int, _context: Context) -> AsyncIterator[bytes]:
        try:
            for number in range(request):
                yield bytes([number])
        finally:
            closed.append(True)

    context = Context()
    assert await as_coroutine(generate)(3, context) is None
    assert context.written == [b"\0", b"\1", b"\2"]
    assert closed == [True]


async def test_a_generator_is_closed_at_once_when_a_write_fails() -> None:
    closed = []

    async def generate(_request: int, _context: Context) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            closed.append(True)

    class Gone(Context):
        async def write(self, message: bytes) -> None:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await as_coroutine(generate)(1, Gone())
    assert closed == [True]


def test_a_coroutine_stays_what_it_is() -> None:
    async def unary(_request: int, _context: Context) -> None: ...

    assert as_coroutine(unary) is unary


@pytest.mark.parametrize(
    ("request_", "metadata", "expected"),
    [
        (SimpleNamespace(request_id="r1"), (("x-request-id", "r2"),), "r1"),
        (SimpleNamespace(request_id=""), (("x-request-id", "r2"),), "r2"),
        (object(), (("x-request-id", "r2"),), "r2"),
        (SimpleNamespace(request_id="r" * 500), (), "r" * 128),
        (object(), (), ""),
    ],
)
def test_the_request_id_comes_from_message_or_metadata(
    request_: object, metadata: tuple[tuple[str, str], ...], expected: str
) -> None:
    assert request_id_of(request_, Context(metadata)) == expected


def test_a_failed_call_downstream_keeps_its_reason() -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="gone"
    )
    known = translate(ErrorMap(), error)
    assert known is not None and known.reason is Reason.PEER_GONE


@pytest.mark.parametrize(
    ("raised", "context", "label"),
    [
        (None, Context(), "OK"),
        (Overloaded("x"), Context(), "RESOURCE_EXHAUSTED"),
        (LookupError("x"), Context(), "ABORTED"),
        (ZeroDivisionError(), Context(), "INTERNAL"),
        (asyncio.CancelledError(), Context(), "CANCELLED"),
        (grpc.aio.AbortError(), Context(code=grpc.StatusCode.NOT_FOUND), "NOT_FOUND"),
        (grpc.aio.AbortError(), Context(code=5), "NOT_FOUND"),
    ],
)
def test_calls_are_timed_under_the_code_the_caller_sees(
    raised: BaseException | None, context: Context, label: str
) -> None:
    metrics, clock, errors = Metrics(), ManualClock(), ErrorMap()
    errors.register(LookupError, lambda error: Conflict(str(error)))

    async def behaviour(_request: object, _context: object) -> str:
        clock.advance(0.25)
        if raised is not None:
            raise raised
        return "result"

    call = handler_of(call_timer(errors, metrics, clock), behaviour)
    with contextlib.suppress(BaseException) if raised else contextlib.nullcontext():
        assert asyncio.run(call(object(), context)) == "result"
    labels = {"rpc_method": METHOD[1:], "rpc_response_status_code": label}
    assert metrics.value("rpc_server_call_duration_seconds", **labels) == 1
    assert sum(
        value
        for name, value in metrics.snapshot().items()
        if name.startswith("rpc_server_call_duration_seconds_sum")
    ) == pytest.approx(0.25)


def test_other_methods_are_left_alone() -> None:
    async def behaviour(_request: object, _context: object) -> None: ...

    async def around(*_arguments: object) -> None: ...

    surround = Surround(around, only=frozenset({"/other/Method"}))
    assert handler_of(surround, behaviour) is behaviour


async def test_the_gate_counts_refuses_and_tells_when_idle() -> None:
    gate = WorkGate(frozenset({METHOD}))
    release = asyncio.Event()
    idle: list[str] = []

    async def behaviour(_request: object, _context: object) -> str:
        await release.wait()
        return "done"

    gate.when_idle(lambda: idle.append("before"))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gate._around(METHOD, behaviour, object(), Context()))
        await asyncio.sleep(0)
        assert gate.running == 1
        gate.when_idle(lambda: idle.append("after"))
        gate.close()
        with pytest.raises(Unavailable, match="takes no new Unary") as caught:
            await gate._around(METHOD, behaviour, object(), Context())
        assert (caught.value.reason, caught.value.retry_after_s) == (Reason.DRAINING, 0.0)
        assert (gate.running, idle) == (1, ["before"])
        release.set()
    assert running.result() == "done"
    assert (gate.running, idle) == (0, ["before", "after"])
    gate.open()
    assert await gate._around(METHOD, behaviour, object(), Context()) == "done"


def test_work_of_another_protocol_counts_and_is_refused_alike() -> None:
    gate, idle = WorkGate(frozenset({METHOD})), []
    with gate.work("completion"):
        assert gate.running == 1
        gate.when_idle(lambda: idle.append(True))
        gate.close()
        with pytest.raises(Unavailable, match="takes no new completion"), gate.work("completion"):
            raise AssertionError("a closed gate let work in")
        assert not idle
    assert (gate.running, idle) == (0, [True])
