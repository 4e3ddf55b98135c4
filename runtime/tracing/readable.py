"""What a span collected, as the exporter of the SDK takes it.

The SDK's own spans check and copy every value under two locks as it arrives, ask the sampler for
every child and keep what nobody here uses; a request has some thirty of them. Ours collect plainly,
and one `ReadableSpan` is built at the end: the same bytes on the wire, for a third of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.span import TraceState
from opentelemetry.trace.status import Status, StatusCode

from runtime.tracing.propagation import TraceContext
from runtime.tracing.table import Attributes, Kind

_SCOPE: Final = InstrumentationScope("disagg", "")
_KINDS: Final[Mapping[Kind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}
_FLAGS: Final = {
    True: TraceFlags(TraceFlags.SAMPLED),
    False: TraceFlags(TraceFlags.DEFAULT),
}
_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)
_PLAIN: Final = frozenset({str, bool, int, float})
_DEFAULT_LIMIT: Final = 128
"""Of attributes, events and links, unless variables say otherwise; ours stay far below."""

Collected = dict[str, Any]
"""Attributes as the SDK keeps them: values are checked, sequences are tuples."""


class Finisher:
    """Builds the spans of a process.

    Args:
        resource: What is said of the process.
        limits: Of numbers and lengths; those of the OTEL_ variables if absent.
    """

    def __init__(self, resource: Resource, limits: SpanLimits | None = None) -> None:
        self._resource = resource
        self._limits = SpanLimits() if limits is None else limits
        counts = (
            *(self._limits.max_span_attributes, self._limits.max_event_attributes),
            *(self._limits.max_link_attributes, self._limits.max_events, self._limits.max_links),
        )
        lengths = (self._limits.max_attribute_length, self._limits.max_span_attribute_length)
        self._is_usual = set(counts) == {_DEFAULT_LIMIT} and set(lengths) == {None}

    def finish(
        self,
        *,
        name: str,
        kind: Kind,
        context: SpanContext,
        parent: SpanContext | None,
        start_ns: int,
        end_ns: int,
        attributes: Collected,
        events: Sequence[Event],
        links: Sequence[Link],
        is_error: bool,
    ) -> ReadableSpan:
        """A span that ended; what goes beyond a limit is dropped and counted, as the SDK does."""
        if not (
            self._is_usual
            and len(attributes) <= _DEFAULT_LIMIT
            and len(events) <= _DEFAULT_LIMIT
            and len(links) <= _DEFAULT_LIMIT
        ):
            attributes, events, links = self._cut(attributes, events, links)
        return ReadableSpan(
            name=name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            events=events,
            links=links,
            kind=_KINDS[kind],
            status=_ERROR if is_error else _UNSET,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=_SCOPE,
        )

    def _cut(
        self, attributes: Collected, events: Sequence[Event], links: Sequence[Link]
    ) -> tuple[Any, Any, Any]:
        """The three in containers of the SDK that drop the oldest and know how many."""
        limits = self._limits
        length = limits.max_attribute_length
        cut_events = [
            Event(
                event.name,
                BoundedAttributes(
                    limits.max_event_attributes, event.attributes, max_value_len=length
                ),
                event.timestamp,
            )
            for event in events
        ]
        cut_links = [
            Link(
                link.context,
                BoundedAttributes(
                    limits.max_link_attributes, link.attributes, max_value_len=length
                ),
            )
            for link in links
        ]
        return (
            BoundedAttributes(
                limits.max_span_attributes,
                attributes,
                max_value_len=limits.max_span_attribute_length,
            ),
            _newest(cut_events, limits.max_events),
            _newest(cut_links, limits.max_links),
        )


def _newest(items: Sequence[Any], most: int | None) -> BoundedList[Any]:
    kept: BoundedList[Any] = BoundedList(most)
    for item in items:
        kept.append(item)
    return kept


def collect(into: Collected, attributes: Attributes | Mapping[str, Any]) -> None:
    """Adds attributes, the newest last, as the SDK orders them."""
    for key, value in attributes.items():
        into.pop(key, None)
        if type(value) in _PLAIN:
            into[key] = value
        else:
            # It may change later, or cannot be sent: the SDK copies it, turns it into text, or
            # leaves it out with a warning.
            into.update(BoundedAttributes(None, {key: value}))


def to_sdk(context: TraceContext) -> SpanContext:
    """A context that came from elsewhere, as the SDK types it."""
    return SpanContext(
        trace_id=context.trace_id,
        span_id=context.span_id,
        is_remote=True,
        trace_flags=_FLAGS[context.is_sampled],
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )
