"""Our spans against those of the SDK: the same calls, bytes, limits and samples."""

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, StatusCode

from runtime.clock import ManualClock
from runtime.tracing.propagation import parse_traceparent
from runtime.tracing.readable import collect, to_sdk
from runtime.tracing.recording import OtelTracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
STATE = "vendor=a:1,other=b"
ELSEWHERE = parse_traceparent("00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01", "x=y")
VALUES: Mapping[str, Any] = {
    "text": "häuser",
    "is": True,
    "number": -(2**40),
    "share": 0.25,
    "reasons": ["stop", "length"],
    "none": [],
    "bytes": b"\x00\xff",
    "last": "cut",
}


class _Counting(IdGenerator):
    """The same ids in the same order, for both."""

    def __init__(self) -> None:
        self._last = 2**60

    def generate_span_id(self) -> int:
        self._last += 1
        return self._last

    def generate_trace_id(self) -> int:
        return self.generate_span_id() << 64

    def is_trace_id_random(self) -> bool:
        return False


def _provider(
    sampler: Sampler = ALWAYS_ON, limits: SpanLimits | None = None
) -> tuple[TracerProvider, InMemorySpanExporter]:
    kept = InMemorySpanExporter()
    provider = TracerProvider(
        sampler=sampler,
        resource=Resource({"service.name": "disagg-test"}),
        id_generator=_Counting(),
        span_limits=limits,
        shutdown_on_exit=False,
    )
    provider.add_span_processor(SimpleSpanProcessor(kept))
    return provider, kept


def _by_us(limits: SpanLimits | None = None) -> InMemorySpanExporter:
    provider, kept = _provider(limits=limits)
    clock = ManualClock(now=5.0, wall=1_000.0)
    tracer = OtelTracer(provider, endpoint="memory", clock=clock, limits=limits)
    headers = [("traceparent", PARENT), ("tracestate", STATE)]
    facts: Any = {"text": "first", "is": False}
    with tracer.serve("a.B/C", headers, facts) as server:
        server.set(VALUES)  # type: ignore[arg-type]
        clock.advance(1.0)
        with server.child("prefill.compute", at=5.5) as child:
            child.event("chunk")
            child.event("chunk", VALUES)  # type: ignore[arg-type]
            child.link(ELSEWHERE, "kv_handoff")
            clock.advance(0.001)
            child.fail(KeyError("no"))
        first = server.call("d.E/F", "[::1]:9", {"disagg.attempt": 1}, repeats="r")
        first.end()
        server.call("d.E/F", "[::1]:9", {"disagg.attempt": 2}, repeats="r").end()
    return kept


def _by_the_sdk(limits: SpanLimits | None = None) -> InMemorySpanExporter:
    provider, kept = _provider(limits=limits)
    tracer = provider.get_tracer("disagg")
    above = parse_traceparent(PARENT, STATE)
    assert above is not None and ELSEWHERE is not None
    second, moment = 1_000_000_000, 1_001_000_000_000

    def below(span: trace.Span) -> Context:
        return trace.set_span_in_context(span, Context())

    server = tracer.start_span(
        "a.B/C",
        below(NonRecordingSpan(to_sdk(above))),
        SpanKind.SERVER,
        {"text": "first", "is": False},
        start_time=1_000 * second,
    )
    server.set_attributes(VALUES)
    child = tracer.start_span("prefill.compute", below(server), start_time=1_000_500_000_000)
    child.add_event("chunk", {}, moment)
    child.add_event("chunk", VALUES, moment)
    child.add_link(to_sdk(ELSEWHERE), {"disagg.link.kind": "kv_handoff"})
    child.set_attribute("error.type", "KeyError")
    child.set_status(StatusCode.ERROR)
    moment += 1_000_000
    child.end(moment)
    links: list[Link] = []
    for attempt in (1, 2):
        call = tracer.start_span(
            "d.E/F",
            below(server),
            SpanKind.CLIENT,
            {
                "rpc.system.name": "grpc",
                "rpc.method": "d.E/F",
                "server.address": "::1",
                "server.port": 9,
                "disagg.attempt": attempt,
            },
            links,
            start_time=moment,
        )
        links = [Link(call.get_span_context(), {"disagg.link.kind": "retry_of"})]
        call.end(moment)
    server.end(moment)
    return kept


LIMITS = [
    None,
    SpanLimits(max_span_attributes=2, max_events=1, max_links=0),
    SpanLimits(max_attribute_length=3, max_event_attributes=1, max_link_attributes=0),
    SpanLimits(max_span_attribute_length=1),
]


@pytest.mark.parametrize("limits", LIMITS, ids=["usual", "counts", "lengths", "of spans"])
def test_the_bytes_are_those_of_the_sdk(limits: SpanLimits | None) -> None:
    ours, theirs = _by_us(limits), _by_the_sdk(limits)
    assert len(ours.get_finished_spans()) == 4
    ours_sent = encode_spans(ours.get_finished_spans())
    theirs_sent = encode_spans(theirs.get_finished_spans())
    assert str(ours_sent) == str(theirs_sent)
    assert ours_sent.SerializeToString(deterministic=True) == theirs_sent.SerializeToString(
        deterministic=True
    )


def test_limits_of_variables_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "2")
    (_, _, _, server) = _by_us().get_finished_spans()
    assert dict(server.attributes or {}) == {"last": "cu"}
    assert server.dropped_attributes > 0


@pytest.mark.parametrize(
    "sampler",
    [
        ALWAYS_ON,
        ALWAYS_OFF,
        TraceIdRatioBased(0.5),
        *(ParentBased(root) for root in (ALWAYS_ON, ALWAYS_OFF, TraceIdRatioBased(0.5))),
    ],
    ids=lambda sampler: str(sampler.get_description()),
)
@pytest.mark.parametrize("flags", ["00", "01", ""], ids=["unsampled", "sampled", "root"])
@pytest.mark.parametrize("low", ["0" * 15 + "1", "f" * 16], ids=["low", "high"])
def test_who_is_recorded_is_decided_as_the_sdk_does(sampler: Sampler, flags: str, low: str) -> None:
    text = f"00-{TRACE[:16]}{low}-b7ad6b7169203331-{flags}"
    provider, kept = _provider(sampler)
    tracer = OtelTracer(provider, endpoint="memory", clock=ManualClock())
    with (
        tracer.serve("a.B/C", [("traceparent", text), ("tracestate", STATE)] if flags else ()) as s,
        s.child("prefill.compute"),
    ):
        on = dict(s.headers())
    theirs, expected = _provider(sampler)
    above = parse_traceparent(text, STATE) if flags else None
    parent = (
        Context()
        if above is None
        else trace.set_span_in_context(NonRecordingSpan(to_sdk(above)), Context())
    )
    plain = theirs.get_tracer("disagg")
    front = plain.start_span("a.B/C", parent, SpanKind.SERVER)
    plain.start_span("prefill.compute", trace.set_span_in_context(front, Context())).end()
    front.end()
    assert [span.name for span in kept.get_finished_spans()] == [
        span.name for span in expected.get_finished_spans()
    ]
    context = front.get_span_context()
    assert on["traceparent"].endswith("-01" if context.trace_flags.sampled else "-00")
    assert on["traceparent"][3:35] == f"{context.trace_id:032x}"
    assert on.get("tracestate", "") == context.trace_state.to_header()


def test_what_is_collected_does_not_change_later() -> None:
    reasons = ["stop"]
    found: dict[str, Any] = {"reasons": ("old",), "last": 1}
    collect(found, {"reasons": reasons})
    collect(found, {"odd": ValueError("as text")})
    reasons.append("length")
    assert list(found.items()) == [("last", 1), ("reasons", ("stop",)), ("odd", "as text")]
