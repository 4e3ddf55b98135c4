"""Spans, and how code makes them without knowing whether anybody looks.

    with current().child("prefill.lookup") as span:
        ...
        span.set({"disagg.kv.hit_blocks": 3})

The current span rides in a context variable, from the edge of a process (`Tracer.serve`) down to
whatever runs for that request; no constructor passes a tracer on. Without an exporter, and in code
that runs for no request, the current span is `NO_SPAN`, which does nothing, makes children that do
nothing, and costs a look at the variable. What records lives in `runtime.tracing`.

A span is named like the code it times or like the remote call it is; `runtime.tracing.table` has
all names. Never a span per token or per block, and never content: what is said of a text is its
size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final, Self

from runtime.tracing.propagation import Headers, TraceContext
from runtime.tracing.table import Attributes, EventName, LinkKind, SpanName


class Span:
    """A piece of work of one request. This one is not recorded and does nothing.

    Any thread may use it. As a context manager it is the current span of the body and ends with it:
    an exception marks it, a cancellation is noted without being an error. An asynchronous generator
    shares the variables of its caller, so it takes `aside` instead.
    """

    __slots__ = ()

    @property
    def context(self) -> TraceContext | None:
        """Where it stands; None if nothing is traced."""
        return None

    @property
    def is_recording(self) -> bool:
        """Whether what is said to it goes anywhere; ask before computing something for it."""
        return False

    @property
    def trace_name(self) -> str:
        """Trace id as 32 hexadecimal digits; empty unless the trace is recorded."""
        return ""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes, or changes them."""

    def event(self, name: EventName, attributes: Attributes | None = None) -> None:
        """Notes that something happened now."""

    def link(self, context: TraceContext | None, kind: LinkKind) -> None:
        """Points to another span; None is ignored."""

    def child(
        self, name: SpanName, attributes: Attributes | None = None, *, at: float | None = None
    ) -> Span:
        """Begins a span below this one.

        Args:
            at: When it began, on the clock of the process; now if absent.
        """
        del name, attributes, at
        return self

    def call(
        self,
        method: str,
        address: str,
        attributes: Attributes | None = None,
        *,
        repeats: str = "",
    ) -> Span:
        """Begins the client span of a remote call below this one.

        Args:
            method: `package.Service/Method`; also the name of the span.
            address: host:port.
            repeats: What the call is for. A later call of the same method for the same thing below
                this span links to this one as `retry_of`.
        """
        del method, address, attributes, repeats
        return self

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Metadata or headers that carry this span on."""
        return ()

    def answered(self, code: str) -> None:
        """Notes the status of the remote call this span is, by its name, such as `OK`.

        After `OK` it cannot be cancelled any more: whoever has everything may leave at once.
        """

    def fail(self, error: BaseException) -> None:
        """Notes what went wrong, as leaving a `with` by it would; only the first word counts."""

    def end(self, *, at: float | None = None) -> None:
        """Ends it, now or at `at`; only the first call counts."""

    @contextlib.contextmanager
    def active(self) -> Iterator[Self]:
        """Makes it the current span of the body without ending it."""
        token = make_current(self)
        try:
            yield self
        finally:
            restore(token)

    @contextlib.contextmanager
    def aside(self) -> Iterator[Self]:
        """Ends with the body and is marked by its exception, without being the current span.

        For a body in an asynchronous generator, or one whose calls do not stand below it.
        """
        try:
            yield self
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.end()

    def __enter__(self) -> Self:
        """See the class."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See the class."""


NO_SPAN: Final = Span()
_current: ContextVar[Span] = ContextVar("disagg_span", default=NO_SPAN)


def current() -> Span:
    """The span of what runs now; `NO_SPAN` if that belongs to no trace."""
    return _current.get()


def make_current(span: Span) -> Token[Span]:
    """Makes a span that of what runs here from now on; give the token to `restore`."""
    return _current.set(span)


def restore(token: Token[Span]) -> None:
    """Undoes a `make_current` of the same task or thread."""
    _current.reset(token)


def current_trace_id() -> str:
    """Trace id of the current span, 32 hexadecimal digits, for logs and exemplars.

    Empty unless the trace is recorded: an id that leads nowhere helps nobody.
    """
    return _current.get().trace_name


class Tracer:
    """Begins spans at the edge of a process. This one records nothing."""

    @property
    def is_on(self) -> bool:
        """Whether anything is recorded or passed on."""
        return False

    @property
    def endpoint(self) -> str:
        """Where spans go; empty if nowhere."""
        return ""

    def serve(
        self,
        name: str,
        headers: Headers,
        attributes: Attributes | None = None,
        *,
        may_begin: bool = True,
    ) -> Span:
        """Begins the server span of a call that came in.

        Args:
            name: `package.Service/Method`, or method and route of HTTP.
            headers: Metadata or headers of the call.
            may_begin: Whether a call that brought no context begins a trace.
        """
        del name, headers, attributes, may_begin
        return NO_SPAN

    def root(
        self, name: SpanName, attributes: Attributes | None = None, *, at: float | None = None
    ) -> Span:
        """Begins a trace that belongs to no call; see `Span.child`."""
        del name, attributes, at
        return NO_SPAN

    def close(self) -> None:
        """Sends what was recorded, within five seconds, and stops; blocking."""


NO_TRACER: Final = Tracer()
