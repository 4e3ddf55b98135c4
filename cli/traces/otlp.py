"""Spans of OTLP as our own messages. Pure.

Values become text here, since people read them; what has no short text (maps, bytes) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from disagg.v1 import traces_pb2

LINK_KIND = "disagg.link.kind"
MAX_TEXT_CHARS = 512
"""Of one value; what is longer ends with dots."""

_KINDS = {
    trace_pb2.Span.SPAN_KIND_INTERNAL: traces_pb2.SPAN_KIND_INTERNAL,
    trace_pb2.Span.SPAN_KIND_SERVER: traces_pb2.SPAN_KIND_SERVER,
    trace_pb2.Span.SPAN_KIND_CLIENT: traces_pb2.SPAN_KIND_CLIENT,
}


def spans_of(export: ExportTraceServiceRequest) -> Iterator[traces_pb2.TraceSpan]:
    """The spans of one export; those without ids of the right length are left out."""
    for group in export.resource_spans:
        resource = _texts(group.resource.attributes)
        service = resource.get("service.name", "")
        process = resource.get("service.instance.id", "")
        for scope in group.scope_spans:
            for span in scope.spans:
                if len(span.trace_id) == 16 and len(span.span_id) == 8:
                    yield _span(span, service, process)


def _span(span: trace_pb2.Span, service: str, process: str) -> traces_pb2.TraceSpan:
    return traces_pb2.TraceSpan(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=_short(span.name),
        kind=_KINDS.get(span.kind, traces_pb2.SPAN_KIND_UNSPECIFIED),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        service=service,
        process=process,
        attributes=_texts(span.attributes),
        events=[
            traces_pb2.SpanEvent(
                name=_short(event.name),
                time_ns=event.time_unix_nano,
                attributes=_texts(event.attributes),
            )
            for event in span.events
        ],
        links=[
            traces_pb2.SpanLink(
                trace_id=link.trace_id,
                span_id=link.span_id,
                kind=_texts(link.attributes).get(LINK_KIND, ""),
            )
            for link in span.links
        ],
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
    )


def _texts(attributes: Iterable[KeyValue]) -> dict[str, str]:
    return {_short(item.key): text for item in attributes if (text := _text(item.value))}


def _text(value: AnyValue) -> str:
    match value.WhichOneof("value"):
        case "string_value":
            return _short(value.string_value)
        case "bool_value":
            return str(value.bool_value).lower()
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return f"{value.double_value:.6g}"
        case "array_value":
            return _short(",".join(map(_text, value.array_value.values)))
        case _:
            return ""


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 3] + "..."
