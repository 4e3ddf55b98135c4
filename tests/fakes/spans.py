"""Spans in memory: a tracer for tests, and what it recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased

from runtime.clock import Clock, SystemClock
from runtime.telemetry import Span
from runtime.tracing.recording import Edge, OtelTracer, RecordedSpan


class _Watched(OtelTracer):
    """Tells of spans that begin."""

    unfinished: OpenSpans

    def record(self, edge: Edge, name: str, *args: Any, **kwargs: Any) -> RecordedSpan:
        span = super().record(edge, name, *args, **kwargs)
        self.unfinished.begin(span, name)
        return span


@dataclass(frozen=True, slots=True)
class Recorded:
    """A tracer and its exporter."""

    tracer: OtelTracer
    exporter: InMemorySpanExporter
    open: OpenSpans

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """Spans that ended, in that order."""
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of one name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only one of its name."""
        (span,) = self.named(name)
        return span


class OpenSpans(SpanProcessor):
    """Names of the spans that began and did not end."""

    def __init__(self) -> None:
        self._open: dict[int, str] = {}

    def begin(self, span: RecordedSpan, name: str) -> None:
        self._open[span.context.span_id] = name

    def on_end(self, span: ReadableSpan) -> None:
        self._open.pop(span.context.span_id)

    @property
    def names(self) -> list[str]:
        return list(self._open.values())


def recorded(
    *,
    clock: Clock | None = None,
    samples: bool = True,
    duplicates_rpc: bool = False,
    beside: Recorded | None = None,
    role: str = "",
) -> Recorded:
    """A tracer that keeps its spans.

    Args:
        beside: Keep them where this one keeps its own, as other processes of one system do.
        role: Of its process.
    """
    exporter = InMemorySpanExporter() if beside is None else beside.exporter
    unfinished = OpenSpans() if beside is None else beside.open
    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_ON if samples else ALWAYS_OFF),
        shutdown_on_exit=False,
        resource=Resource({"disagg.role": role}),
    )
    provider.add_span_processor(unfinished)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = _Watched(
        provider,
        endpoint="memory",
        clock=clock or SystemClock(),
        duplicates_rpc=duplicates_rpc,
    )
    tracer.unfinished = unfinished
    return Recorded(tracer, exporter, unfinished)


@contextmanager
def served(found: Recorded, name: str = "a.B/C") -> Iterator[Span]:
    """The body runs inside a server span."""
    with found.tracer.serve(name, ()) as span:
        yield span


def facts(span: ReadableSpan) -> dict[str, object]:
    """Its attributes."""
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> list[tuple[str, str]]:
    """Kind and target span id of its links."""
    return [
        (str((link.attributes or {})["disagg.link.kind"]), f"{link.context.span_id:016x}")
        for link in span.links
    ]


def span_id(span: ReadableSpan) -> str:
    """Its id."""
    return f"{span.context.span_id:016x}"


def parent_id(span: ReadableSpan) -> str:
    """The id of what it stands below; empty for a root."""
    return "" if span.parent is None else f"{span.parent.span_id:016x}"
