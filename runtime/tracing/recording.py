"""Spans that are recorded, and sent by the SDK of OpenTelemetry.

With `readable` and `exporting` the only modules that import it; all are loaded when a process
exports spans and never otherwise. Times are those of the process's own clock, counted from one look
at the wall clock, so that a wall clock that jumps bends no span.

The sampler is asked where a trace begins and where one comes in, once each. Whatever it is, its
answer depends on the trace or on the parent alone, so it would be the same for every span below.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Mapping
from contextvars import Token
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, cast

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.span import TraceState

from runtime.clock import Clock
from runtime.errors import DisaggError
from runtime.telemetry import NO_SPAN, Span, Tracer, make_current, restore
from runtime.tracing.propagation import Headers, TraceContext, read_headers, write_headers
from runtime.tracing.readable import Collected, Finisher, collect, to_sdk
from runtime.tracing.table import (
    LINK_KIND,
    SPANS,
    Attribute,
    Attributes,
    EventName,
    Kind,
    LinkKind,
    SpanName,
    Value,
)
from runtime.tracing.unsampled import UnsampledSpan

FLUSH_S: Final = 5.0
SERVER_FAULTS: Final = frozenset(
    {
        *("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE"),
        "DATA_LOSS",
    }
)
"""Codes that are a server's own fault; the others are the caller's, and no error of its span."""

_EDGE_KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NOWHERE: Final = Context()
"""An empty context, not the one in force: nothing of ours depends on hidden variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What the recorded spans of a trace share in this process.

    Attributes:
        name: The trace id as people and exemplars write it, 32 hexadecimal digits.
        state: `tracestate` as the SDK types it; `state_text` as it is sent on.
    """

    trace_id: int
    name: str
    state: TraceState
    state_text: str
    baggage: Mapping[str, str]


class OtelTracer(Tracer):
    """Records what is sampled.

    Args:
        provider: Its sampler decides, its processors export; they are told of ends alone.
        endpoint: Where to, for people.
        clock: Of this process; the times that `at` names are on it.
        duplicates_rpc: Also spell attributes of calls as they were before they were stable.
        limits: Of attributes, events and links; those of the OTEL_ variables if absent.
    """

    def __init__(
        self,
        provider: TracerProvider,
        *,
        endpoint: str,
        clock: Clock,
        duplicates_rpc: bool = False,
        limits: SpanLimits | None = None,
    ) -> None:
        self._provider = provider
        self._endpoint = endpoint
        self._clock = clock
        # Both clocks once: durations and distances are then those of the clock that only grows.
        self._zero_ns = round(clock.wall() * 1e9) - round(clock.now() * 1e9)
        self._processor = cast("SdkTracer", provider.get_tracer("disagg")).span_processor
        self._sampler = provider.sampler
        self._ids = provider.id_generator
        self.finisher = Finisher(provider.resource, limits)
        self.duplicates_rpc = duplicates_rpc

    @property
    def is_on(self) -> bool:
        """See `Tracer.is_on`."""
        return True

    @property
    def endpoint(self) -> str:
        """See `Tracer.endpoint`."""
        return self._endpoint

    def serve(
        self,
        name: str,
        headers: Headers,
        attributes: Attributes | None = None,
        *,
        may_begin: bool = True,
    ) -> Span:
        """See `Tracer.serve`."""
        incoming = read_headers(headers)
        if incoming.context is None and not may_begin:
            return NO_SPAN
        return self._begin(
            name, "server", parent=incoming.context, attributes=attributes, baggage=incoming.baggage
        )

    def root(
        self, name: SpanName, attributes: Attributes | None = None, *, at: float | None = None
    ) -> Span:
        """See `Tracer.root`."""
        return self._begin(
            name, SPANS[name].kind, parent=None, attributes=attributes, baggage={}, at=at
        )

    def _begin(
        self,
        name: str,
        kind: Kind,
        *,
        parent: TraceContext | None,
        attributes: Attributes | None,
        baggage: Mapping[str, str],
        at: float | None = None,
    ) -> Span:
        """Begins a trace, or what this process does in one that came in; here is sampled."""
        above, context = None, _NOWHERE
        if parent is None:
            trace_id = self._ids.generate_trace_id()
        else:
            trace_id = parent.trace_id
            above = to_sdk(parent)
            context = trace.set_span_in_context(NonRecordingSpan(above), _NOWHERE)
        told = cast("Mapping[str, Any]", attributes)  # the same, as the SDK types it
        found = self._sampler.should_sample(context, trace_id, name, _EDGE_KINDS[kind], told, ())
        state = found.trace_state or TraceState()
        if found.decision is Decision.RECORD_AND_SAMPLE:
            edge = Edge(
                trace_id=trace_id,
                name=f"{trace_id:032x}",
                state=state,
                state_text=state.to_header(),
                baggage=baggage,
            )
            return self.record(edge, name, kind, above, cast("Attributes", found.attributes), at)
        return UnsampledSpan(
            TraceContext(
                trace_id=trace_id,
                span_id=self._ids.generate_span_id(),
                is_sampled=False,
                state=state.to_header(),
            ),
            baggage,
        )

    def record(
        self,
        edge: Edge,
        name: str,
        kind: Kind,
        parent: SpanContext | None,
        attributes: Attributes | None = None,
        at: float | None = None,
    ) -> RecordedSpan:
        """Begins a span that is recorded, whatever it stands below."""
        context = SpanContext(
            edge.trace_id, self._ids.generate_span_id(), False, _SAMPLED, edge.state
        )
        return RecordedSpan(self, edge, name, kind, context, parent, attributes, self.time_ns(at))

    def export(self, span: ReadableSpan) -> None:
        """Hands over a span that ended."""
        self._processor.on_end(span)

    def time_ns(self, at: float | None) -> int:
        """Nanoseconds since 1970 of a time on the clock of the process; now if absent."""
        return self._zero_ns + round((self._clock.now() if at is None else at) * 1e9)

    def close(self) -> None:
        """See `Tracer.close`."""
        # A collector that does not answer is no reason to end late; the SDK waits longer for it.
        worker = threading.Thread(target=self._flush, name="last-spans", daemon=True)
        worker.start()
        worker.join(FLUSH_S)

    def _flush(self) -> None:
        with contextlib.suppress(Exception):  # what went wrong is in the log
            self._provider.force_flush(round(FLUSH_S * 1000))
        self._provider.shutdown()


class RecordedSpan(Span):
    """See `Span`."""

    __slots__ = (
        *("_attributes", "_calls", "_edge", "_events", "_is_ended", "_is_error", "_is_marked"),
        *("_kind", "_links", "_lock", "_name", "_own", "_parent", "_start_ns", "_token", "_tracer"),
    )

    def __init__(
        self,
        tracer: OtelTracer,
        edge: Edge,
        name: str,
        kind: Kind,
        own: SpanContext,
        parent: SpanContext | None,
        attributes: Attributes | None,
        start_ns: int,
    ) -> None:
        self._tracer = tracer
        self._edge = edge
        self._name = name
        self._kind = kind
        self._own = own
        self._parent = parent
        self._start_ns = start_ns
        # Single operations on these are atomic, and the end takes copies: no lock for each.
        self._attributes: Collected = {}
        self._events: list[Event] = []
        self._links: list[Link] = []
        self._calls: dict[tuple[str, str], SpanContext] | None = None
        self._token: Token[Span] | None = None
        self._lock = threading.Lock()
        self._is_ended = False
        self._is_error = False
        self._is_marked = False
        if attributes:
            collect(self._attributes, attributes)

    @property
    def context(self) -> TraceContext:
        """See `Span.context`."""
        return TraceContext(
            trace_id=self._edge.trace_id,
            span_id=self._own.span_id,
            is_sampled=True,
            state=self._edge.state_text,
        )

    @property
    def is_recording(self) -> bool:
        """See `Span.is_recording`."""
        return True

    @property
    def trace_name(self) -> str:
        """See `Span.trace_name`."""
        return self._edge.name

    def set(self, attributes: Attributes) -> None:
        """See `Span.set`."""
        if not self._is_ended:
            collect(self._attributes, attributes)

    def event(self, name: EventName, attributes: Attributes | None = None) -> None:
        """See `Span.event`."""
        if not self._is_ended:
            said: Collected = {}
            collect(said, attributes or {})
            self._events.append(Event(name, said, self._tracer.time_ns(None)))

    def link(self, context: TraceContext | None, kind: LinkKind) -> None:
        """See `Span.link`."""
        if context is not None and not self._is_ended:
            self._links.append(Link(to_sdk(context), {LINK_KIND: kind}))

    def child(
        self,
        name: SpanName,
        attributes: Attributes | None = None,
        *,
        at: float | None = None,
    ) -> Span:
        """See `Span.child`."""
        kind = SPANS[name].kind
        return self._tracer.record(self._edge, name, kind, self._own, attributes, at)

    def call(
        self,
        method: str,
        address: str,
        attributes: Attributes | None = None,
        *,
        repeats: str = "",
    ) -> Span:
        """See `Span.call`."""
        known = call_attributes(method, address, duplicates=self._tracer.duplicates_rpc)
        span = self._tracer.record(self._edge, method, "client", self._own, known)
        if attributes:
            span.set(attributes)
        if repeats:
            if self._calls is None:
                self._calls = {}
            earlier = self._calls.get((method, repeats))
            if earlier is not None:
                span._links.append(Link(earlier, {LINK_KIND: "retry_of"}))
            self._calls[method, repeats] = span._own
        return span

    def headers(self) -> tuple[tuple[str, str], ...]:
        """See `Span.headers`."""
        return write_headers(self.context, self._edge.baggage)

    def answered(self, code: str) -> None:
        """See `Span.answered`."""
        self.set({"rpc.response.status_code": code})
        if self._tracer.duplicates_rpc:
            number = next((known.value[0] for known in grpc.StatusCode if known.name == code), 2)
            self.set({"rpc.grpc.status_code": number})
        if code == "OK":
            self._is_marked = True
        elif code == "CANCELLED":
            self._cancel()
        else:
            self._mark(code, is_error=self._kind == "client" or code in SERVER_FAULTS)

    def fail(self, error: BaseException) -> None:
        """See `Span.fail`."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
            self._cancel()
        elif isinstance(error, DisaggError):
            if error.code is grpc.StatusCode.CANCELLED:
                self._cancel()
                return
            is_error = self._kind == "client" or error.code.name in SERVER_FAULTS
            self._mark(error.reason.value, is_error=is_error)
        else:
            # The class alone: a text may hold what the caller sent.
            self._mark(type(error).__name__, is_error=True)

    def _cancel(self) -> None:
        if not self._is_marked:
            self.set({"disagg.cancelled": True})

    def _mark(self, what: str, *, is_error: bool) -> None:
        if self._is_ended or self._is_marked:
            return
        self._is_marked = True
        self.set({"error.type": what})
        self._is_error = is_error

    def end(self, *, at: float | None = None) -> None:
        """See `Span.end`."""
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
        self._tracer.export(
            self._tracer.finisher.finish(
                name=self._name,
                kind=self._kind,
                context=self._own,
                parent=self._parent,
                start_ns=self._start_ns,
                end_ns=self._tracer.time_ns(at),
                # Another thread may be about to add to ours.
                attributes=self._attributes.copy(),
                events=tuple(self._events),
                links=tuple(self._links),
                is_error=self._is_error,
            )
        )

    def __enter__(self) -> Self:
        """See `Span`."""
        self._token = make_current(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `Span`."""
        if self._token is not None:
            restore(self._token)
            self._token = None
        if error is not None:
            self.fail(error)
        self.end()


@functools.lru_cache(maxsize=1024)
def call_attributes(method: str, address: str, *, duplicates: bool) -> Attributes:
    """What every client span of a gRPC call says; a process makes few different calls."""
    said = {**rpc_attributes(method, duplicates=duplicates), **address_attributes(address)}
    return MappingProxyType(said)


def rpc_attributes(method: str, *, duplicates: bool) -> dict[Attribute, Value]:
    """What every span of a gRPC call says of its method."""
    found: dict[Attribute, Value] = {"rpc.system.name": "grpc", "rpc.method": method}
    if duplicates:
        service, _, name = method.rpartition("/")
        found |= {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    return found


def address_attributes(address: str) -> dict[Attribute, Value]:
    """Host and port of a peer; its text as it is if that is no host:port."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return {"server.address": address}
    return {"server.address": host.strip("[]"), "server.port": int(port)}
