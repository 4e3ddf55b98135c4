"""The spans of a prompt whose begin and end lie in other threads: its computing, its publishing.

Both are told what happens and begin and end their spans; without a trace they do nothing. What is
written goes to the store in bursts, as chunks finish: a burst is one span, from its first write to
the moment when nothing is left to write. So there is never a span per block, and at most
`MAX_BURSTS` of a prompt; the last of them covers the rest.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Protocol, Self

from kvstore.tracing import StoreSpans
from runtime.telemetry import NO_SPAN, Span, current
from runtime.tracing.table import MAX_CHUNK_EVENTS, Attributes

MAX_BURSTS = 32


class Started(Protocol):
    """Says when the engine began with a request."""

    @property
    def started_at(self) -> float | None:
        """On the clock of the process; None while it waits."""
        ...


class ComputeSpans:
    """`prefill.queue` and `prefill.compute` of one prompt; event loop.

    Args:
        handle: Of the prompt in the engine.
        submitted: When it was given to the engine.
        cached_tokens: Tokens of the prompt that need no computing.
    """

    def __init__(self, handle: Started, submitted: float, cached_tokens: int) -> None:
        self._handle = handle
        self._cached_tokens = cached_tokens
        self._parent = current()
        self._queue = self._parent.child("prefill.queue", {"disagg.queue": "engine"}, at=submitted)
        self._compute: Span | None = None
        self._num_chunks = 0

    def chunk(self, num_tokens: int) -> None:
        """Another chunk was computed; tokens of the prompt with KV so far."""
        self._begin()
        if self._compute is None or not self._compute.is_recording:
            return
        self._num_chunks += 1
        computed: Attributes = {"disagg.computed_tokens": num_tokens - self._cached_tokens}
        if self._num_chunks <= MAX_CHUNK_EVENTS:
            self._compute.event("chunk", computed)
        self._compute.set(computed)

    def _begin(self) -> None:
        if self._compute is None and (started := self._handle.started_at) is not None:
            self._queue.end(at=started)
            self._compute = self._parent.child("prefill.compute", at=started)

    def __enter__(self) -> Self:
        """Nothing to do: the wait began when the prompt was submitted."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends both, whatever ended the prompt."""
        self._begin()
        for span in (self._queue, self._compute or NO_SPAN):
            if error is not None:
                span.fail(error)
            span.end()


class PublishSpans:
    """`prefill.publish` of one prompt, and the `kvstore.put` below it; any thread.

    Args:
        spans: Of the store.
        fingerprint: Of the layout that is stored.
    """

    def __init__(self, spans: StoreSpans, fingerprint: bytes) -> None:
        self._spans = spans
        self._fingerprint = fingerprint
        self._parent = current()
        self._lock = threading.Lock()
        self._publish: Span | None = None
        self._put: Span | None = None
        self._num_bursts = 0
        self._num_waiting = 0
        self._burst = [0, 0]
        self._all = [0, 0, 0]

    @property
    def span(self) -> Span:
        """`prefill.publish`; begins when it is first asked for."""
        with self._lock:
            return self._begun()

    def queued(self) -> None:
        """A write will follow."""
        if not self._parent.is_recording:
            return
        with self._lock:
            self._num_waiting += 1
            if self._put is None:
                self._num_bursts += 1
                self._put = self._spans.begin("kvstore.put", "SET", below=self._begun())

    def written(self, num_bytes: int, *, is_block: bool) -> None:
        """A write is over; no bytes if it did not happen."""
        if not self._parent.is_recording:
            return
        with self._lock:
            self._num_waiting -= 1
            for counts in (self._burst, self._all):
                counts[0] += is_block and num_bytes > 0
                counts[1] += num_bytes
            self._all[2] += num_bytes > 0
            if not self._num_waiting and self._num_bursts < MAX_BURSTS:
                self._end_burst()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more is written; twice is harmless."""
        if not self._parent.is_recording:
            return
        with self._lock:
            self._end_burst()
            if self._publish is None:
                return
            if error is not None:
                self._publish.fail(error)
            self._publish.set(
                {
                    "disagg.kv.blocks": self._all[0],
                    "disagg.kv.bytes": self._all[1],
                    "disagg.kv.segments": self._all[2],
                    "disagg.kv.fingerprint": self._fingerprint.hex(),
                }
            )
            self._publish.end()

    def _begun(self) -> Span:
        if self._publish is None:
            self._publish = self._parent.child("prefill.publish")
        return self._publish

    def _end_burst(self) -> None:
        if self._put is None:
            return
        self._put.set({"disagg.kv.blocks": self._burst[0], "disagg.kv.bytes": self._burst[1]})
        self._put.end()
        self._put = None
        self._burst = [0, 0]
