"""Client spans in an application's own traces, and nothing without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from client.errors import ClientError
from client.tracing import GENERATE, traced
from tests.fakes.spans import facts, parent_id, span_id

METADATA = (("authorization", "Bearer k"),)


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """An application that has set up its traces, as it does once per process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", lambda name: provider.get_tracer(name))
    yield exporter
    provider.shutdown()


def test_an_application_without_opentelemetry_pays_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    with traced(GENERATE, "h:1", "r-1", METADATA) as metadata:
        assert metadata is METADATA


def test_a_call_is_a_client_span_below_what_the_application_does(
    application: InMemorySpanExporter,
) -> None:
    with (
        trace.get_tracer("app").start_as_current_span("ask"),
        traced(GENERATE, "h:1", "r-1", METADATA) as metadata,
    ):
        outside = trace.get_current_span()
    call, ask = application.get_finished_spans()
    assert call.name == GENERATE
    assert call.kind is SpanKind.CLIENT
    assert parent_id(call) == span_id(ask)
    assert outside.get_span_context().span_id == ask.context.span_id  # never the current one
    assert facts(call) == {
        "rpc.system.name": "grpc",
        "rpc.method": GENERATE,
        "rpc.response.status_code": "OK",
        "disagg.request_id": "r-1",
        "server.address": "h",
        "server.port": 1,
    }
    sent = dict(metadata)
    assert sent["authorization"] == "Bearer k"
    assert sent["traceparent"].split("-")[2] == span_id(call)


def test_failures_have_code_and_reason_and_no_text(application: InMemorySpanExporter) -> None:
    error = ClientError("secret", code="UNAVAILABLE", reason="NO_DECODE", last_seq=0)
    with pytest.raises(ClientError), traced(GENERATE, "dns:///x", "r", ()):
        raise error
    (call,) = application.get_finished_spans()
    assert call.status.status_code is StatusCode.ERROR
    assert facts(call)["rpc.response.status_code"] == "UNAVAILABLE"
    assert facts(call)["error.type"] == "NO_DECODE"
    assert facts(call)["server.address"] == "dns:///x"
    assert "secret" not in str(facts(call)) + str(call.events) + str(call.status.description)


def test_a_caller_that_stops_listening_is_no_error(application: InMemorySpanExporter) -> None:
    def stream() -> Iterator[int]:
        with traced(GENERATE, "h:1", "r", ()):
            yield 1
            yield 2

    left = stream()
    next(left)
    left.close()  # type: ignore[attr-defined]
    (call,) = application.get_finished_spans()
    assert facts(call)["disagg.cancelled"] is True
    assert call.status.status_code is StatusCode.UNSET
