"""The spans of calls to the store: named in one place, with what the server is.

Their kind is client, so that a graph of services gets an edge to the store. One span covers a whole
pipeline of commands, never a block; nothing about a trace is sent to the store.
"""

from __future__ import annotations

from typing import Literal

from kvstore.config import StoreUrl
from runtime.telemetry import Span, current
from runtime.tracing.table import Attribute, Value

StoreSpan = Literal["kvstore.put", "kvstore.get", "kvstore.commit", "kvstore.lease"]
Operation = Literal["SET", "GET", "EVALSHA"]

_PLAIN_SYSTEMS = {"memory": "memory", "file": "files"}


class StoreSpans:
    """Begins the spans of one store.

    Args:
        url: Of the store; None: a private one in memory.
    """

    def __init__(self, url: StoreUrl | None = None) -> None:
        scheme = "memory" if url is None else url.scheme
        self._facts: dict[Attribute, Value] = {
            "db.system.name": _PLAIN_SYSTEMS.get(scheme, "redis")
        }
        if url is not None and scheme not in _PLAIN_SYSTEMS:
            self._facts |= _address(url)

    def begin(self, name: StoreSpan, operation: Operation, *, below: Span | None = None) -> Span:
        """Begins the span of a call that follows.

        Args:
            below: What it stands below; the current span if absent.
        """
        parent = current() if below is None else below
        if not parent.is_recording:
            return parent.child(name)
        return parent.child(name, {**self._facts, "db.operation.name": operation})


def _address(url: StoreUrl) -> dict[Attribute, Value]:
    """Where the server is; of several sentinels that know it, the first."""
    if url.scheme == "unix":
        return {"server.address": url.path}
    host, port = url.sentinels[0] if url.sentinels else (url.host, url.port)
    return {"server.address": host, "server.port": port}
