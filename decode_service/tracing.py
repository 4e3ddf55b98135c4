"""The spans of a sequence in the engine: its wait, and what it generates. Event loop.

Counts and gaps are kept for a recorded trace alone; there is never a span per token or per step.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from kvstore.ticket import Ticket
from runtime.clock import Clock
from runtime.telemetry import NO_SPAN, Span, current
from runtime.tracing.propagation import parse_traceparent


def fetching(ticket: Ticket) -> Span:
    """`decode.fetch`, with its link to the commit of the hand-off, whichever trace that is in."""
    span = current().child("decode.fetch")
    if span.is_recording and ticket.traceparent:
        span.link(parse_traceparent(ticket.traceparent), "kv_handoff")
    return span


class Started(Protocol):
    """Says when the engine began with a request."""

    @property
    def started_at(self) -> float | None:
        """On the clock of the process; None while it waits."""
        ...


class GenerateSpans:
    """`decode.queue` and `decode.generate` of one sequence.

    Args:
        handle: Of the sequence in the engine.
        submitted: When it was given to the engine.
        clock: Of the process.
    """

    def __init__(self, handle: Started, submitted: float, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._parent = current()
        self._queue = self._parent.child("decode.queue", {"disagg.queue": "engine"}, at=submitted)
        self._generate: Span | None = None
        self._num_tokens = 0
        self._num_steps = 0
        self._first = 0.0
        self._last = 0.0
        self._max_gap_s = 0.0

    def tokens(self, count: int) -> None:
        """So many tokens came together."""
        self._begin()
        if self._generate is None or not self._generate.is_recording:
            return
        now = self._clock.now()
        if not self._num_tokens:
            self._first = now
            self._generate.event("first_token")
        else:
            self._max_gap_s = max(self._max_gap_s, now - self._last)
        self._last = now
        self._num_tokens += count
        self._num_steps += 1

    def last(self) -> None:
        """No more tokens follow: from now on the caller may leave without having cancelled."""
        self._end()
        self._parent.answered("OK")

    def _begin(self) -> None:
        if self._generate is None and (started := self._handle.started_at) is not None:
            self._queue.end(at=started)
            self._generate = self._parent.child("decode.generate", at=started)

    def __enter__(self) -> Self:
        """Nothing to do: the wait began when the sequence was submitted."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends both, whatever ended the sequence."""
        self._end(error)

    def _end(self, error: BaseException | None = None) -> None:
        self._begin()
        generate = self._generate or NO_SPAN
        if generate.is_recording:
            gaps = max(1, self._num_tokens - 1)
            generate.set(
                {
                    "disagg.output_tokens": self._num_tokens,
                    "disagg.steps": self._num_steps,
                    "disagg.tpot_ms": (self._last - self._first) * 1000 / gaps,
                    "disagg.max_gap_ms": self._max_gap_s * 1000,
                }
            )
        for span in (self._queue, generate):
            if error is not None:
                span.fail(error)
            span.end()
