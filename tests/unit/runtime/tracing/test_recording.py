"""Recorded spans: times, statuses, links, what goes on to the next process."""

import asyncio
import threading

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from runtime.clock import ManualClock
from runtime.errors import CallerLeft, InvalidRequest, Overloaded, Unavailable
from runtime.telemetry import NO_SPAN, current
from runtime.tracing import recording
from tests.fakes.spans import facts, links, parent_id, recorded, served, span_id

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_parents_kinds_and_names() -> None:
    found = recorded()
    with found.tracer.serve("a.B/C", [("traceparent", PARENT)]) as server:
        with server.child("decode.fetch") as fetch, fetch.child("kvstore.get"):
            pass
        call = server.call("d.E/F", "[::1]:9")
        call.end()
    outer = found.one("a.B/C")
    assert outer.kind is SpanKind.SERVER
    assert parent_id(outer) == "b7ad6b7169203331"
    assert parent_id(found.one("decode.fetch")) == span_id(outer)
    assert parent_id(found.one("kvstore.get")) == span_id(found.one("decode.fetch"))
    assert found.one("kvstore.get").kind is SpanKind.CLIENT
    assert found.one("decode.fetch").kind is SpanKind.INTERNAL
    assert facts(found.one("d.E/F")) == {
        "rpc.system.name": "grpc",
        "rpc.method": "d.E/F",
        "server.address": "::1",
        "server.port": 9,
    }
    assert {span.context.trace_id for span in found.spans} == {int(PARENT[3:35], 16)}


def test_times_are_those_of_the_clock_even_when_told_later() -> None:
    clock = ManualClock(now=5.0, wall=1_000.0)
    found = recorded(clock=clock)
    with served(found) as server:
        clock.advance(2.0)
        queue = server.child("prefill.queue", at=5.5)
        queue.end(at=6.0)
        queue.end()  # only the first end counts
    span = found.one("prefill.queue")
    assert (span.start_time, span.end_time) == (1_000_500_000_000, 1_001_000_000_000)
    assert found.one("a.B/C").end_time == 1_002_000_000_000


def test_a_repeated_call_for_the_same_links_to_the_one_before() -> None:
    found = recorded()
    with served(found) as server:
        for key in ("r-1", "r-2", "r-1", "", ""):
            server.call("a.B/Go", "h:1", repeats=key).end()
    first, other, again, *rest = found.named("a.B/Go")
    assert links(again) == [("retry_of", span_id(first))]
    assert not any(links(span) for span in (first, other, *rest))


@pytest.mark.parametrize(
    ("error", "said", "status"),
    [
        (InvalidRequest("no"), "BAD_REQUEST", StatusCode.UNSET),
        (Overloaded("no"), "QUEUE_FULL", StatusCode.UNSET),
        (Unavailable("no"), "PEER_GONE", StatusCode.ERROR),
        (KeyError("secret"), "KeyError", StatusCode.ERROR),
    ],
)
def test_errors_of_a_server_are_its_own_faults(
    error: Exception, said: str, status: StatusCode
) -> None:
    found = recorded()
    with pytest.raises(type(error)), served(found):
        raise error
    span = found.one("a.B/C")
    assert span.status.status_code is status
    assert facts(span) == {"error.type": said}
    assert span.status.description is None  # a text may hold what the caller sent
    assert span.events == ()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), CallerLeft("bye")])
def test_a_cancellation_is_noted_and_no_error(error: BaseException) -> None:
    found = recorded()
    with pytest.raises(type(error)), served(found):
        raise error
    span = found.one("a.B/C")
    assert span.status.status_code is StatusCode.UNSET
    assert facts(span) == {"disagg.cancelled": True}


@pytest.mark.parametrize(
    ("code", "server", "client"),
    [
        ("OK", StatusCode.UNSET, StatusCode.UNSET),
        ("NOT_FOUND", StatusCode.UNSET, StatusCode.ERROR),
        ("DATA_LOSS", StatusCode.ERROR, StatusCode.ERROR),
        ("CANCELLED", StatusCode.UNSET, StatusCode.UNSET),
    ],
)
def test_codes(code: str, server: StatusCode, client: StatusCode) -> None:
    found = recorded()
    with served(found) as span:
        call = span.call("a.B/Go", "h:1")
        call.answered(code)
        call.end()
        span.answered(code)
    assert found.one("a.B/C").status.status_code is server
    assert found.one("a.B/Go").status.status_code is client
    assert facts(found.one("a.B/Go"))["rpc.response.status_code"] == code


def test_the_old_spelling_stands_beside_the_new_one() -> None:
    found = recorded(duplicates_rpc=True)
    with served(found) as span:
        call = span.call("p.S/M", "h:1")
        call.answered("UNAVAILABLE")
        call.end()
    said = facts(found.one("p.S/M"))
    assert (said["rpc.system"], said["rpc.service"], said["rpc.grpc.status_code"]) == (
        "grpc",
        "p.S",
        14,
    )


def test_a_call_that_may_not_begin_a_trace_needs_one() -> None:
    found = recorded()
    assert found.tracer.serve("a.B/C", (), may_begin=False) is NO_SPAN
    with found.tracer.serve("a.B/C", [("traceparent", PARENT)], may_begin=False):
        pass
    assert len(found.spans) == 1


def test_roots_stand_for_themselves_and_what_ended_takes_nothing_more() -> None:
    found = recorded()
    with served(found):
        root = found.tracer.root("engine.step")
        root.link(current().context, "step_of")
        root.end()
        root.set({"disagg.sequences": 1})
        root.event("chunk")
        root.link(current().context, "step_of")
        root.fail(ValueError())
    span = found.one("engine.step")
    assert span.parent is None
    assert facts(span) == {}
    assert links(span) == [("step_of", span_id(found.one("a.B/C")))]
    found.tracer.close()


def test_a_collector_that_never_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found, stuck = recorded(), threading.Event()
    monkeypatch.setattr(recording, "FLUSH_S", 0.02)
    monkeypatch.setattr(found.tracer._provider, "force_flush", lambda _ms: stuck.wait(10))
    found.tracer.close()
    assert not stuck.is_set()
    stuck.set()
