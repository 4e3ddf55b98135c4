"""The server span of every call that is work, and those of calls that bring a trace along.

Sits inside the exception mapper and outside everything else, so that it covers what a caller waits
for and sees the errors of all that is inside. Probes, reflection and heartbeats begin no trace.
"""

from __future__ import annotations

from typing import Any

import grpc.aio

from runtime.errors import ErrorMap
from runtime.interceptors import Behaviour, Context, Surround, code_name, request_id_of, translate
from runtime.telemetry import NO_SPAN, Tracer


def call_tracer(tracer: Tracer, errors: ErrorMap, work: frozenset[str]) -> Surround:
    """The interceptor.

    Args:
        work: Full method names whose calls may begin a trace.
    """

    async def around(method: str, inner: Behaviour, request: Any, context: Context) -> Any:
        if not tracer.is_on:
            return await inner(request, context)
        name = method.lstrip("/")
        span = tracer.serve(
            name,
            context.invocation_metadata() or (),
            {"rpc.system.name": "grpc", "rpc.method": name},
            may_begin=method in work,
        )
        if span is NO_SPAN:
            return await inner(request, context)
        with span:
            if span.is_recording:
                request_id = request_id_of(request, context)
                span.set(
                    {
                        "network.peer.address": context.peer(),
                        **({"disagg.request_id": request_id} if request_id else {}),
                    }
                )
            try:
                result = await inner(request, context)
            except grpc.aio.AbortError:
                span.answered(code_name(context.code()))
                raise
            except Exception as error:
                known = translate(errors, error)
                span.fail(error if known is None else known)
                span.answered("INTERNAL" if known is None else known.code.name)
                raise
            span.answered("OK")
            return result

    return Surround(around)
