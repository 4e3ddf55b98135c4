"""The life of a serving process."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.clock import ManualClock, system_random
from runtime.heartbeat import Heartbeat
from runtime.member import Condition, Examiner, run_member
from runtime.metrics import Metrics
from runtime.serve import DrainSettings, Host, ListenSettings, StopSignals

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture
async def host() -> AsyncIterator[Host]:
    host = Host(
        role="test",
        clock=ManualClock(),
        metrics=Metrics(),
        work=frozenset(),
        services=["disagg.v1.AdminService"],
        listen=ListenSettings(reflection=False),
        drain=DrainSettings(propagation_s=0.0, max_s=1.0, grace_s=0.0),
    )
    await host.start()
    yield host
    await host.stop(0)


async def _wait_for(host: Host, service: str, wanted: int) -> None:
    async with asyncio.timeout(5), grpc.aio.insecure_channel(host.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        async for response in stub.Watch(health_pb2.HealthCheckRequest(service=service)):
            if response.status == wanted:
                return


async def test_it_reports_announces_and_ends_when_asked(host: Host) -> None:
    stop = StopSignals()
    beats: list[bool] = []

    async def examine() -> Condition:
        return Condition()

    async def beat() -> float:
        beats.append(host.is_draining)
        return 10.0

    heartbeat = Heartbeat("b-0", beat, clock=ManualClock(), uniform=system_random(0))
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(run_member(host, stop=stop, examine=examine, heartbeats=[heartbeat]))
        await _wait_for(host, "startup", SERVING)
        await _wait_for(host, "readiness", SERVING)
        stop.request()
    assert beats[0] is False
    assert beats[-1] is True, "the drain is announced at once, not an interval later"


async def test_bad_conditions_take_readiness_away_and_liveness_only_when_said(host: Host) -> None:
    stop = StopSignals()
    conditions = [Condition()]

    async def examine() -> Condition:
        return conditions[-1]

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(run_member(host, stop=stop, examine=examine, interval_s=0.001))
        await _wait_for(host, "readiness", SERVING)
        conditions.append(Condition(is_ready=False, cause="store_down"))
        await _wait_for(host, "readiness", NOT_SERVING)
        await _wait_for(host, "liveness", SERVING)
        conditions.append(Condition(is_live=False, is_ready=False, cause="stuck"))
        await _wait_for(host, "liveness", NOT_SERVING)
        conditions.append(Condition())
        await _wait_for(host, "readiness", SERVING)
        await _wait_for(host, "liveness", SERVING)
        stop.request()


async def test_a_fatal_condition_ends_the_process_with_its_cause(host: Host) -> None:
    async def examine() -> Condition:
        return Condition(
            is_live=False, is_ready=False, cause="engine", fatal=RuntimeError("rank 1 is dead")
        )

    with pytest.raises(RuntimeError, match="rank 1 is dead"):
        async with asyncio.timeout(5):
            await run_member(host, stop=StopSignals(), examine=examine)
    assert host.is_draining


async def test_a_bug_in_a_heartbeat_ends_the_process(host: Host) -> None:
    async def examine() -> Condition:
        return Condition()

    async def beat() -> float:
        raise KeyError("typo")

    heartbeat = Heartbeat("b-0", beat, clock=ManualClock(), uniform=system_random(0))
    with pytest.raises(KeyError, match="typo"):
        async with asyncio.timeout(5):
            await run_member(host, stop=StopSignals(), examine=examine, heartbeats=[heartbeat])


class _Service:
    """A step loop and a dependency with buttons."""

    def __init__(self) -> None:
        self.is_turning = True
        self.failure: Exception | None = None
        self.ping_error: Exception | None = None
        self.hang: threading.Event | None = None

    def ping(self) -> None:
        if self.hang is not None:
            self.hang.wait(5)
        if self.ping_error is not None:
            raise self.ping_error


async def test_the_examiner_tells_live_ready_and_fatal_apart() -> None:
    service = _Service()
    with ThreadPoolExecutor(1) as executor:
        examine = Examiner(
            is_turning=lambda: service.is_turning,
            failure=lambda: service.failure,
            dependency="store",
            ping=service.ping,
            executor=executor,
            timeout_s=0.05,
        )
        assert await examine() == Condition()
        service.ping_error = OSError("refused")
        assert await examine() == Condition(is_ready=False, cause="store_down")
        service.ping_error, service.hang = None, threading.Event()
        assert await examine() == Condition(is_ready=False, cause="store_down")
        service.hang.set()
        service.is_turning = False
        assert await examine() == Condition(is_live=False, is_ready=False, cause="loop_stuck")
        service.failure = RuntimeError("rank 1 is dead")
        assert (await examine()).fatal is service.failure
