"""The spans a collector keeps: whole traces, newest first to stay, in bounded memory. Thread-safe.

A trace counts as new whenever a span of it arrives. When there are too many bytes, the trace that
waited longest is dropped as a whole, so that what can be found is complete; only a trace that alone
is too large loses spans.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from disagg.v1 import traces_pb2

REQUEST_ID = "disagg.request_id"
MAX_BYTES = 64 << 20
_OVERHEAD_BYTES = 512
"""What a span costs beside its encoded size, about."""


@dataclass(slots=True)
class _Trace:
    spans: dict[bytes, traces_pb2.TraceSpan] = field(default_factory=dict)
    request_ids: set[str] = field(default_factory=set)
    num_bytes: int = 0


class KeptTraces:
    """See the module.

    Args:
        max_bytes: Of all spans, about.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._traces: OrderedDict[bytes, _Trace] = OrderedDict()
        self._by_request: dict[str, set[bytes]] = {}
        self._num_bytes = 0
        self._num_dropped = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._traces)

    @property
    def num_bytes(self) -> int:
        """Bytes kept, about."""
        return self._num_bytes

    @property
    def num_dropped(self) -> int:
        """Spans dropped so far."""
        return self._num_dropped

    def add(self, spans: Iterable[traces_pb2.TraceSpan]) -> None:
        """Keeps spans; one that came before is kept once."""
        with self._lock:
            for span in spans:
                self._add(span)

    def find(self, request_id: str) -> list[traces_pb2.TraceSpan]:
        """All spans of all traces with a span of this request."""
        with self._lock:
            return [
                span
                for trace_id in sorted(self._by_request.get(request_id, ()))
                for span in self._traces[trace_id].spans.values()
            ]

    def _add(self, span: traces_pb2.TraceSpan) -> None:
        trace = self._traces.setdefault(span.trace_id, _Trace())
        self._traces.move_to_end(span.trace_id)
        if span.span_id in trace.spans:
            return
        size = span.ByteSize() + _OVERHEAD_BYTES
        if trace.num_bytes + size > self._max_bytes:
            self._num_dropped += 1
            return
        trace.spans[span.span_id] = span
        trace.num_bytes += size
        self._num_bytes += size
        if request_id := span.attributes.get(REQUEST_ID, ""):
            trace.request_ids.add(request_id)
            self._by_request.setdefault(request_id, set()).add(span.trace_id)
        while self._num_bytes > self._max_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        trace_id, trace = self._traces.popitem(last=False)
        self._num_bytes -= trace.num_bytes
        self._num_dropped += len(trace.spans)
        for request_id in trace.request_ids:
            known = self._by_request[request_id]
            known.discard(trace_id)
            if not known:
                del self._by_request[request_id]
