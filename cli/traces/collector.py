"""`python -m cli.traces.collector`: takes spans over OTLP/gRPC and answers questions about them.

On this machine alone: it listens on the loopback and keeps what it takes in bounded memory. It
writes one ready line with its address, like the other processes of a local system, and runs until
SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING, TextIO

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from cli.traces.kept import KeptTraces
from cli.traces.otlp import spans_of
from disagg.v1 import traces_pb2, traces_pb2_grpc
from runtime.channel import MESSAGE_OPTIONS
from runtime.errors import ExitCode
from runtime.serve import StopSignals

if TYPE_CHECKING:  # generic in the type stubs only
    _Find = grpc.aio.ServicerContext[traces_pb2.FindTracesRequest, traces_pb2.FindTracesResponse]

_GRACE_S = 0.5


class ExportFace(trace_service_pb2_grpc.TraceServiceServicer):
    """What exporters speak to."""

    def __init__(self, kept: KeptTraces) -> None:
        self._kept = kept

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, _context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """See OTLP."""
        self._kept.add(spans_of(request))
        return trace_service_pb2.ExportTraceServiceResponse()


class FindFace(traces_pb2_grpc.TraceServiceServicer):
    """What `disagg trace` speaks to."""

    def __init__(self, kept: KeptTraces) -> None:
        self._kept = kept

    async def FindTraces(
        self, request: traces_pb2.FindTracesRequest, _context: _Find
    ) -> traces_pb2.FindTracesResponse:
        """See traces.proto."""
        return traces_pb2.FindTracesResponse(
            spans=self._kept.find(request.request_id),
            num_traces=len(self._kept),
            num_dropped=self._kept.num_dropped,
        )


async def start(kept: KeptTraces) -> tuple[grpc.aio.Server, str]:
    """A started server on a free port of the loopback, and its address."""
    server = grpc.aio.server(options=[*MESSAGE_OPTIONS, ("grpc.so_reuseport", 0)])
    # The generated code of OpenTelemetry has no types.
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(  # type: ignore[no-untyped-call]
        ExportFace(kept), server
    )
    traces_pb2_grpc.add_TraceServiceServicer_to_server(FindFace(kept), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


async def run(stop: StopSignals, ready_to: TextIO = sys.stdout) -> None:
    """Collects until asked to stop."""
    server, address = await start(KeptTraces())
    line = {"event": "ready", "role": "traces", "address": address, "pid": os.getpid()}
    ready_to.write(json.dumps(line) + "\n")
    ready_to.flush()
    await stop.drain.wait()
    await server.stop(_GRACE_S)


async def _main() -> None:
    stop = StopSignals()
    with stop.installed():
        await run(stop)


if __name__ == "__main__":
    asyncio.run(_main())
    sys.exit(ExitCode.OK)
