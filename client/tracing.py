"""Client spans of calls, in the traces of the application that uses this client.

The client needs nothing of OpenTelemetry and loads nothing of it. Only if the application has
loaded its API, calls become client spans below the application's current span, and carry its
context to the balancer; what is exported and sampled is the application's choice. Of a request its
id and its sizes are told, never its text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from client.errors import ClientError

Metadata = tuple[tuple[str, str | bytes], ...]
GENERATE = "disagg.v1.GenerationService/Generate"
ROUTE = "disagg.v1.RoutingService/Route"
DECODE = "disagg.v1.DecodeService/Decode"
_API = "opentelemetry.trace"
_SCOPE = "disagg.client"


@contextmanager
def traced(method: str, address: str, request_id: str, metadata: Metadata) -> Iterator[Metadata]:
    """The body makes a call: yields the metadata for it, and ends its span.

    It never becomes the current span: a generator shares the context of its caller.

    Args:
        method: `package.Service/Method`.
        address: host:port, or a target of gRPC.
        metadata: What goes with the call anyway.
    """
    api: Any = sys.modules.get(_API)  # a module has any attribute, as far as types tell
    if api is None:
        yield metadata
        return
    from opentelemetry.propagate import inject

    span = api.get_tracer(_SCOPE).start_span(
        method, kind=api.SpanKind.CLIENT, attributes=_facts(method, address, request_id)
    )
    carrier: dict[str, str] = {}
    inject(carrier, context=api.set_span_in_context(span))
    try:
        yield (*metadata, *carrier.items())
        span.set_attribute("rpc.response.status_code", "OK")
    except ClientError as error:
        span.set_attribute("rpc.response.status_code", error.code)
        span.set_attribute("error.type", error.reason or error.code)
        if error.code != "CANCELLED":
            span.set_status(api.StatusCode.ERROR)
        raise
    except BaseException as error:
        # A caller that stops listening is no error; a text may hold what it sent.
        if isinstance(error, Exception):
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(api.StatusCode.ERROR)
        else:
            span.set_attribute("disagg.cancelled", True)
        raise
    finally:
        span.end()


def _facts(method: str, address: str, request_id: str) -> dict[str, str | int]:
    host, _, port = address.rpartition(":")
    facts: dict[str, str | int] = {
        "rpc.system.name": "grpc",
        "rpc.method": method,
        "disagg.request_id": request_id,
        "server.address": host.strip("[]") if port.isdecimal() else address,
    }
    if host and port.isdecimal():
        facts["server.port"] = int(port)
    return facts
