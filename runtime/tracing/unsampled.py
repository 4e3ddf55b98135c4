"""A span of a trace that nobody records: it does nothing but pass its context on."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import Self

from runtime.telemetry import NO_SPAN, Span, make_current, restore
from runtime.tracing.propagation import TraceContext, write_headers
from runtime.tracing.table import Attributes, SpanName


class UnsampledSpan(Span):
    """A span of a trace that nobody records: its context goes on, so that nobody below does."""

    __slots__ = ("_baggage", "_context", "_token")

    def __init__(self, context: TraceContext, baggage: Mapping[str, str]) -> None:
        self._context = context
        self._baggage = baggage
        self._token: Token[Span] | None = None

    @property
    def context(self) -> TraceContext:
        """See `Span.context`."""
        return self._context

    def child(
        self,
        name: SpanName,
        attributes: Attributes | None = None,
        *,
        at: float | None = None,
    ) -> Span:
        """See `Span.child`."""
        del name, attributes, at
        return NO_SPAN  # entering it leaves this one current

    def call(
        self,
        method: str,
        address: str,
        attributes: Attributes | None = None,
        *,
        repeats: str = "",
    ) -> Span:
        """See `Span.call`."""
        del method, address, attributes, repeats
        return UnsampledSpan(self._context, self._baggage)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """See `Span.headers`."""
        return write_headers(self._context, self._baggage)

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
