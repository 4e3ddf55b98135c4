"""Our message of OTLP against the one that the encoder of the SDK makes of the same spans."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.span import TraceState

from runtime.tracing.encoding import Exporter, encode

REMOTE = SpanContext(
    2**127 + 5, 2**63 + 7, True, TraceFlags(1), TraceState([("a", "1"), ("b", "")])
)
VALUES: dict[str, Any] = {
    "text": "ä\n",
    "empty": "",
    "yes": True,
    "no": False,
    "number": -(2**63),
    "zero": 0,
    "share": 0.1,
    "bytes": b"\x00",
    "texts": ("a", "b"),
    "nothing": (),
    "mixed": (1, True, 2.5, None, ("x",)),
    "map": {"k": 1, "deep": {"l": "m"}},
    "none": None,
}


def _spans(limits: SpanLimits | None = None) -> Sequence[ReadableSpan]:
    """Two processes, two scopes of one of them, every kind, status and container."""
    kept = InMemorySpanExporter()
    for name in ("one", "two"):
        provider = TracerProvider(
            resource=Resource({"service.name": name, **VALUES}, f"urn:{name}"),
            span_limits=limits,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(SimpleSpanProcessor(kept))
        plain = provider.get_tracer("disagg")
        other = provider.get_tracer("other", "1.0", "urn:s", {"x": 1})
        above = trace.set_span_in_context(NonRecordingSpan(REMOTE), Context())
        front = plain.start_span("front", above, SpanKind.SERVER, VALUES)
        for number, kind in enumerate(SpanKind):
            tracer = other if number % 2 else plain
            links = [Link(REMOTE, VALUES), Link(front.get_span_context(), {})]
            below = trace.set_span_in_context(front, Context())
            span = tracer.start_span(f"s{number}", below, kind, links=links[:number])
            for event in range(number):
                span.add_event(f"e{event}", VALUES if event else None, timestamp=event + 1)
            span.end(number + 1)
        front.set_status(Status(StatusCode.ERROR, "said" if name == "one" else None))
        front.end()
        plain.start_span("root", Context()).end()
    return kept.get_finished_spans()


@pytest.mark.parametrize(
    "limits",
    [None, SpanLimits(max_span_attributes=3, max_events=1, max_links=1, max_attributes=2)],
    ids=["usual", "cut"],
)
def test_the_message_is_the_one_of_the_sdk(limits: SpanLimits | None) -> None:
    spans = _spans(limits)
    ours, theirs = encode(spans), encode_spans(spans)
    assert str(ours) == str(theirs)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(
        deterministic=True
    )
    assert encode(()) == encode_spans(())


def test_what_cannot_be_sent_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    odd: dict[str, Any] = {"a": 1, "large": 2**64, "b": "x", "deep": ("y", 2**64)}
    provider.get_tracer("disagg").start_span("s", Context(), attributes=odd).end()
    with caplog.at_level(logging.CRITICAL, "opentelemetry"):
        theirs = encode_spans(kept.get_finished_spans())
    assert encode(kept.get_finished_spans()) == theirs
    assert [record.getMessage() for record in caplog.records] == [
        "attribute large of a span cannot be sent and is left out",
        "attribute deep of a span cannot be sent and is left out",
    ]


def test_the_exporter_of_the_sdk_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its hook is none that it promises: gone, nothing breaks but spans are dearer again.
    assert callable(OTLPSpanExporter._translate_data)
    exporter = Exporter(endpoint="127.0.0.1:1", insecure=True)
    sent: list[Any] = []

    def send(request: Any, **_: Any) -> None:
        sent.append(request)

    monkeypatch.setattr(exporter._client, "Export", send)
    monkeypatch.setattr("runtime.tracing.encoding.encode", lambda spans: ("ours", len(spans)))
    exporter.export(_spans())
    exporter.shutdown()
    assert sent == [("ours", 14)]
