"""A collector on loopback: spans in over OTLP, traces out."""

from __future__ import annotations

import asyncio
import io
import json

import grpc.aio

from cli.traces.collector import run, start
from cli.traces.kept import KeptTraces
from disagg.v1 import traces_pb2, traces_pb2_grpc
from runtime.clock import SystemClock
from runtime.serve import StopSignals
from runtime.tracing.exporting import open_tracer
from runtime.tracing.settings import TracingPlan


async def find(address: str, request_id: str) -> traces_pb2.FindTracesResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = traces_pb2_grpc.TraceServiceStub(channel)
        request = traces_pb2.FindTracesRequest(request_id=request_id)
        return await stub.FindTraces(request, timeout=5)


def send_one(address: str) -> None:
    """What a process does: opens its exporter, ends a span, closes."""
    plan = TracingPlan(endpoint=f"http://{address}", sampler="always_on")
    tracer = open_tracer(
        plan,
        role="decode",
        version="1",
        instance="decode-0-r1-aa",
        clock=SystemClock(),
        dp_rank="1",
    )
    with tracer.serve("disagg.v1.DecodeService/Decode", ()) as span:
        span.set({"disagg.request_id": "r-1", "disagg.attempt": 2})
        with span.child("decode.fetch"):
            pass
    tracer.close()


async def test_spans_of_a_real_exporter_are_found_by_their_request() -> None:
    kept = KeptTraces()
    server, address = await start(kept)
    try:
        await asyncio.to_thread(send_one, address)
        found = await find(address, "r-1")
        nothing = await find(address, "r-2")
    finally:
        await server.stop(0)
    assert {span.name for span in found.spans} == {
        "disagg.v1.DecodeService/Decode",
        "decode.fetch",
    }
    assert {(span.service, span.process) for span in found.spans} == {
        ("disagg-decode", "decode-0-r1-aa")
    }
    assert found.num_traces == 1
    assert found.num_dropped == 0
    assert len(nothing.spans) == 0


async def test_the_process_says_where_it_listens_and_ends_when_asked() -> None:
    stop, said = StopSignals(), io.StringIO()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(run(stop, said))
        while not said.getvalue():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.005)
        ready = json.loads(said.getvalue())
        assert ready["role"] == "traces"
        assert ready["address"].startswith("127.0.0.1:")
        assert not (await find(ready["address"], "r-1")).spans
        stop.request()
