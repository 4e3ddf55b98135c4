"""Spans of OTLP become our own, with short texts and without what is no span."""

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from cli.traces.otlp import MAX_TEXT_CHARS, spans_of
from disagg.v1 import traces_pb2

TEXTS = AnyValue(
    array_value=ArrayValue(values=[AnyValue(string_value="a"), AnyValue(string_value="b")])
)


def export(*spans: trace_pb2.Span) -> ExportTraceServiceRequest:
    resource = Resource(
        attributes=[
            KeyValue(key="service.name", value=AnyValue(string_value="disagg-decode")),
            KeyValue(key="service.instance.id", value=AnyValue(string_value="decode-0-r0")),
        ]
    )
    scope = trace_pb2.ScopeSpans(spans=spans)
    return ExportTraceServiceRequest(
        resource_spans=[trace_pb2.ResourceSpans(resource=resource, scope_spans=[scope])]
    )


def test_every_field_arrives() -> None:
    sent = trace_pb2.Span(
        trace_id=bytes(15) + b"\1",
        span_id=bytes(7) + b"\2",
        parent_span_id=bytes(7) + b"\3",
        name="decode.fetch",
        kind=trace_pb2.Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=5,
        end_time_unix_nano=9,
        attributes=[
            KeyValue(key="text", value=AnyValue(string_value="x")),
            KeyValue(key="true", value=AnyValue(bool_value=True)),
            KeyValue(key="whole", value=AnyValue(int_value=-3)),
            KeyValue(key="real", value=AnyValue(double_value=0.25)),
            KeyValue(key="several", value=TEXTS),
            KeyValue(key="bytes", value=AnyValue(bytes_value=b"\0")),
        ],
        events=[trace_pb2.Span.Event(name="first_token", time_unix_nano=7)],
        links=[
            trace_pb2.Span.Link(
                trace_id=bytes(16),
                span_id=bytes(8),
                attributes=[
                    KeyValue(key="disagg.link.kind", value=AnyValue(string_value="kv_handoff"))
                ],
            )
        ],
        status=trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR),
    )
    (span,) = spans_of(export(sent))
    assert (span.service, span.process) == ("disagg-decode", "decode-0-r0")
    assert (span.trace_id, span.span_id, span.parent_span_id) == (
        sent.trace_id,
        sent.span_id,
        sent.parent_span_id,
    )
    assert (span.name, span.kind) == ("decode.fetch", traces_pb2.SPAN_KIND_CLIENT)
    assert (span.start_ns, span.end_ns, span.is_error) == (5, 9, True)
    assert dict(span.attributes) == {
        "text": "x",
        "true": "true",
        "whole": "-3",
        "real": "0.25",
        "several": "a,b",
    }
    assert [(event.name, event.time_ns) for event in span.events] == [("first_token", 7)]
    assert [link.kind for link in span.links] == ["kv_handoff"]


def test_what_has_no_ids_is_no_span_and_long_texts_are_cut() -> None:
    bad = trace_pb2.Span(trace_id=b"short", span_id=bytes(8), name="x")
    long = trace_pb2.Span(trace_id=bytes(16), span_id=bytes(8), name="x" * 10_000)
    (span,) = spans_of(export(bad, long))
    assert len(span.name) == MAX_TEXT_CHARS
    assert span.name.endswith("...")
