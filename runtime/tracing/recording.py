"""Spans that are recorded, over the SDK of OpenTelemetry.

The only module besides `exporting` that imports it; both are loaded when a process exports spans
and never otherwise. Times are those of the process's own clock, counted from one look at the wall
clock, so that a wall clock that jumps bends no span.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping, Sequence
from contextvars import Token
from types import TracebackType
from typing import Any, Final, Self, cast

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace.span import TraceState
from opentelemetry.trace.status import Status, StatusCode

from runtime.clock import Clock
from runtime.errors import DisaggError
from runtime.telemetry import NO_SPAN, Span, Tracer, make_current, restore
from runtime.tracing.propagation import Headers, TraceContext, read_headers, write_headers
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

_KINDS: Mapping[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}


class OtelTracer(Tracer):
    """Records what is sampled.

    Args:
        provider: Samples and exports.
        endpoint: Where to, for people.
        clock: Of this process; the times that `at` names are on it.
        duplicates_rpc: Also spell attributes of calls as they were before they were stable.
    """

    def __init__(
        self,
        provider: TracerProvider,
        *,
        endpoint: str,
        clock: Clock,
        duplicates_rpc: bool = False,
    ) -> None:
        self._provider = provider
        self._endpoint = endpoint
        self._clock = clock
        # Both clocks once: durations and distances are then those of the clock that only grows.
        self._zero_ns = round(clock.wall() * 1e9) - round(clock.now() * 1e9)
        self._tracer = provider.get_tracer("disagg")
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
        parent = None if incoming.context is None else NonRecordingSpan(_out(incoming.context))
        return self.begin(
            name, "server", parent=parent, attributes=attributes, baggage=incoming.baggage
        )

    def root(
        self, name: SpanName, attributes: Attributes | None = None, *, at: float | None = None
    ) -> Span:
        """See `Tracer.root`."""
        kind = SPANS[name].kind
        return self.begin(name, kind, parent=None, attributes=attributes, baggage={}, at=at)

    def begin(
        self,
        name: str,
        kind: Kind,
        *,
        parent: OtelSpan | None,
        attributes: Attributes | None,
        baggage: Mapping[str, str],
        links: Sequence[Link] = (),
        at: float | None = None,
    ) -> Span:
        """Begins a span below `parent`, or a trace."""
        # An empty context, not the one in force: nothing of ours depends on hidden variables.
        context = Context() if parent is None else trace.set_span_in_context(parent)
        span = self._tracer.start_span(
            name,
            context=context,
            kind=_KINDS[kind],
            attributes=_plain(attributes),
            links=links,
            start_time=self.time_ns(at),
            record_exception=False,
            set_status_on_exception=False,
        )
        if not span.is_recording():
            return UnsampledSpan(_in(span.get_span_context()), baggage)
        return RecordedSpan(self, span, kind, baggage)

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
        *("_baggage", "_calls", "_context", "_is_ended", "_is_marked", "_kind", "_lock", "_span"),
        *("_token", "_tracer"),
    )

    def __init__(
        self, tracer: OtelTracer, span: OtelSpan, kind: Kind, baggage: Mapping[str, str]
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._kind = kind
        self._baggage = baggage
        self._context = _in(span.get_span_context())
        self._calls: dict[tuple[str, str], SpanContext] = {}
        self._token: Token[Span] | None = None
        self._lock = threading.Lock()
        self._is_ended = False
        self._is_marked = False

    @property
    def context(self) -> TraceContext:
        """See `Span.context`."""
        return self._context

    @property
    def is_recording(self) -> bool:
        """See `Span.is_recording`."""
        return True

    def set(self, attributes: Attributes) -> None:
        """See `Span.set`."""
        if not self._is_ended:
            self._span.set_attributes(_plain(attributes))

    def event(self, name: EventName, attributes: Attributes | None = None) -> None:
        """See `Span.event`."""
        if not self._is_ended:
            self._span.add_event(name, _plain(attributes), self._tracer.time_ns(None))

    def link(self, context: TraceContext | None, kind: LinkKind) -> None:
        """See `Span.link`."""
        if context is not None and not self._is_ended:
            self._span.add_link(_out(context), {LINK_KIND: kind})

    def child(
        self,
        name: SpanName,
        attributes: Attributes | None = None,
        *,
        at: float | None = None,
    ) -> Span:
        """See `Span.child`."""
        return self._tracer.begin(
            name,
            SPANS[name].kind,
            parent=self._span,
            attributes=attributes,
            baggage=self._baggage,
            at=at,
        )

    def call(
        self,
        method: str,
        address: str,
        attributes: Attributes | None = None,
        *,
        repeats: str = "",
    ) -> Span:
        """See `Span.call`."""
        earlier = self._calls.get((method, repeats)) if repeats else None
        links = [] if earlier is None else [Link(earlier, {LINK_KIND: "retry_of"})]
        span = self._tracer.begin(
            method,
            "client",
            parent=self._span,
            attributes={
                **rpc_attributes(method, duplicates=self._tracer.duplicates_rpc),
                **address_attributes(address),
                **(attributes or {}),
            },
            baggage=self._baggage,
            links=links,
        )
        if repeats and isinstance(span, RecordedSpan):
            self._calls[method, repeats] = span._span.get_span_context()
        return span

    def headers(self) -> tuple[tuple[str, str], ...]:
        """See `Span.headers`."""
        return write_headers(self._context, self._baggage)

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
        self._span.set_attribute("error.type", what)
        if is_error:
            self._span.set_status(Status(StatusCode.ERROR))

    def end(self, *, at: float | None = None) -> None:
        """See `Span.end`."""
        with self._lock:
            if self._is_ended:
                return
            self._is_ended = True
        self._span.end(self._tracer.time_ns(at))

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


def _plain(attributes: Attributes | None) -> Mapping[str, Any]:
    """The same, as the SDK types it."""
    return cast("Mapping[str, Any]", attributes or {})


def _out(context: TraceContext) -> SpanContext:
    flags = TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT
    return SpanContext(
        trace_id=context.trace_id,
        span_id=context.span_id,
        is_remote=True,
        trace_flags=TraceFlags(flags),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )


def _in(context: SpanContext) -> TraceContext:
    return TraceContext(
        trace_id=context.trace_id,
        span_id=context.span_id,
        is_sampled=context.trace_flags.sampled,
        state=context.trace_state.to_header(),
    )
