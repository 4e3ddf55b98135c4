"""The process: ready line, readiness by its parts, a clean end."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager

import grpc.aio
import httpx2
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from balancer.config import BalancerSettings
from balancer.service import serve
from balancer.text import ModelFilesError
from disagg.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc
from runtime.clock import SystemClock
from runtime.serve import StopSignals
from tests.fakes.front_door import MODEL, FakeStore
from tests.fakes.members import decode_member, prefill_member

pytestmark = pytest.mark.medium


def settings(**sections: object) -> BalancerSettings:
    return BalancerSettings.model_validate(
        {
            "model": {"path": str(MODEL)},
            "store": {"url": "unix:///nowhere"},
            "drain": {"propagation_s": 0.0},
            **sections,
        }
    )


@asynccontextmanager
async def running(store: FakeStore, **sections: object):
    """Runs the service; yields a channel to it and what asks it to stop."""
    ready, stop = io.StringIO(), StopSignals()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            serve(
                settings(**sections),
                clock=SystemClock(),
                stop=stop,
                store=store,
                version="1",
                ready_to=ready,
            )
        )
        for _ in range(500):
            if ready.getvalue():
                break
            await asyncio.sleep(0.01)
        line = json.loads(ready.getvalue())
        assert line["event"] == "ready"
        assert line["role"] == "balancer"
        assert ("http" in line) == ("http" in sections)
        async with grpc.aio.insecure_channel(line["address"]) as channel:
            yield (channel, line["http"]) if "http" in line else channel
            stop.request()
            async with asyncio.timeout(10):
                await task


async def state(channel: grpc.aio.Channel, name: str) -> str:
    request = health_pb2.HealthCheckRequest(service=name)
    answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def until(channel: grpc.aio.Channel, name: str, wanted: str) -> None:
    for _ in range(400):
        if await state(channel, name) == wanted:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} never became {wanted}")


async def test_readiness_needs_a_pair_and_the_store() -> None:
    store = FakeStore(reachable=False)
    p0, d0 = prefill_member(), decode_member()
    await p0.start()
    await d0.start()
    try:
        async with running(store) as channel:
            assert await state(channel, "liveness") == "SERVING"
            await until(channel, "startup", "SERVING")
            assert await state(channel, "readiness") == "NOT_SERVING"
            await p0.announce(channel)
            await d0.announce(channel)
            assert await state(channel, "readiness") == "NOT_SERVING"  # the store is down
            store.reachable = True
            await until(channel, "readiness", "SERVING")
            assert await state(channel, "disagg.v1.GenerationService") == "SERVING"
            store.reachable = False
            await until(channel, "readiness", "NOT_SERVING")
            assert await state(channel, "liveness") == "SERVING"
    finally:
        await p0.stop()
        await d0.stop()


async def test_a_stop_lets_a_running_request_end() -> None:
    p0, d0 = prefill_member(), decode_member()
    await p0.start()
    await d0.start()
    try:
        async with running(FakeStore()) as channel:
            await p0.announce(channel)
            await d0.announce(channel)
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            request = generation_pb2.GenerateRequest(request_id="r", text="x")
            call = stub.Generate(request, timeout=10)
            first = await call.read()
            reading = asyncio.gather(_rest(call))
        [messages] = await reading
        assert [first, *messages][-1].HasField("final")
    finally:
        await p0.stop()
        await d0.stop()


async def _rest(call):
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


async def test_a_model_that_cannot_be_read_stops_the_start(tmp_path) -> None:
    with pytest.raises(ModelFilesError, match=r"config\.json does not exist"):
        await serve(
            settings(model={"path": str(tmp_path)}),
            clock=SystemClock(),
            stop=StopSignals(),
            store=FakeStore(),
            version="1",
        )


async def test_a_stop_lets_an_http_answer_end_and_refuses_the_next() -> None:
    p0, d0 = prefill_member(), decode_member()
    await p0.start()
    await d0.start()
    body = {"prompt": "x", "max_tokens": 400, "stream": True}
    try:
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=10) as client,
            running(FakeStore(), http={"port": 0}) as (channel, address),
        ):
            await p0.announce(channel)
            await d0.announce(channel)
            url = f"http://{address}/v1/completions"
            async with client.stream("POST", url, json=body) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                stub = admin_pb2_grpc.AdminServiceStub(channel)
                await stub.Drain(admin_pb2.DrainRequest(), timeout=5)
                assert (await client.post(url, json=body)).status_code == 503
                rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
    finally:
        await p0.stop()
        await d0.stop()
