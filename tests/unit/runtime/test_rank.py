"""A rank from start to exit, with a step loop and a dependency made of buttons."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from runtime.clock import ManualClock, system_random
from runtime.errors import ErrorMap
from runtime.heartbeat import Heartbeat
from runtime.metrics import Metrics
from runtime.rank import RankPlan, gauges, new_member_id, run_rank
from runtime.serve import DrainSettings, Host, ListenError, ListenSettings, StopSignals

BOUND_S = 10.0


class Machine:
    """What a rank is made of, and what happened to it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failure: Exception | None = None
        self.ping_error: Exception | None = None
        self.announce_error: Exception | None = None
        self.stop_timeout_s = 0.0
        self.ticks = 0
        self.second_tick = asyncio.Event()
        self.is_complete = asyncio.Event()
        self.is_complete.set()
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        self.events.append("loop started")

    async def stop(self, *, drain_s: float = 0.0, timeout_s: float = 10.0) -> None:
        assert timeout_s > drain_s
        self.stop_timeout_s = timeout_s
        self.events.append("loop stopped")

    async def wait_complete(self) -> None:
        await self.is_complete.wait()

    def is_healthy(self) -> bool:
        return self.failure is None

    def ping(self) -> None:
        self.events.append("pinged")
        if self.ping_error is not None:
            raise self.ping_error

    async def tick(self) -> None:
        self.ticks += 1
        if self.ticks == 2:
            self.second_tick.set()

    def equip(self, host: Host) -> None:
        assert host.address == ""
        self.events.append("equipped")

    def announce(self, host: Host, stop: StopSignals, stack: AsyncExitStack) -> list[Heartbeat]:
        if self.announce_error is not None:
            raise self.announce_error
        self.address.set_result(host.address)
        stack.callback(lambda: self.events.append("channel closed"))

        async def beat() -> float:
            self.events.append("draining" if host.is_draining or stop.drain.is_set() else "beat")
            return 10.0

        return [Heartbeat("b-0", beat, clock=ManualClock(), uniform=system_random(0))]


@asynccontextmanager
async def planned(port: int = 0, rank: int = 0) -> AsyncIterator[tuple[Machine, RankPlan]]:
    machine = Machine()
    with ThreadPoolExecutor(1) as executor:
        yield (
            machine,
            RankPlan(
                role="test",
                rank=rank,
                services=["disagg.v1.AdminService"],
                work=frozenset(),
                listen=ListenSettings(port=port),
                drain=DrainSettings(propagation_s=0.0, max_s=1.0, grace_s=0.0),
                errors=ErrorMap(),
                metrics=Metrics(),
                clock=ManualClock(),
                executor=executor,
                step_loop=machine,
                dependency="store",
                ping=machine.ping,
                equip=machine.equip,
                announce=machine.announce,
                on_tick=machine.tick,
            ),
        )


async def _ready(address: str) -> None:
    async with asyncio.timeout(BOUND_S), grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        async for response in stub.Watch(health_pb2.HealthCheckRequest(service="readiness")):
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                return


@pytest.mark.parametrize(
    "ask", [lambda _: os.kill(os.getpid(), signal.SIGTERM), lambda stop: stop.request()]
)
async def test_a_rank_starts_in_order_serves_and_leaves_in_reverse(
    ask: Callable[[StopSignals], None],
) -> None:
    stop = StopSignals()
    async with planned() as (machine, plan), asyncio.timeout(BOUND_S):
        async with asyncio.TaskGroup() as group:
            group.create_task(run_rank(plan, stop=stop))
            await _ready(await machine.address)
            ask(stop)
        assert machine.events[:3] == ["pinged", "equipped", "loop started"]
        assert "beat" in machine.events
        assert machine.events[-3:] == ["draining", "channel closed", "loop stopped"]
        assert machine.ticks >= 1


async def test_a_dependency_that_is_away_at_the_start_ends_it_before_anything_runs() -> None:
    async with planned() as (machine, plan):
        machine.ping_error = ConnectionRefusedError("no store")
        with pytest.raises(ConnectionRefusedError, match="no store"):
            await run_rank(plan)
        assert machine.events == ["pinged"]


async def test_a_dead_step_loop_ends_the_rank_with_its_reason() -> None:
    async with planned() as (machine, plan), asyncio.timeout(BOUND_S):
        machine.failure = RuntimeError("rank 1 is late")
        with pytest.raises(RuntimeError, match="rank 1 is late"):
            await run_rank(plan)
        assert machine.events[-1] == "loop stopped"


async def test_ranks_listen_on_ports_in_a_row() -> None:
    stop = StopSignals()
    async with (
        planned() as (first, plan),
        asyncio.timeout(BOUND_S),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(run_rank(plan, stop=stop))
        taken = int((await first.address).rsplit(":", 1)[1])
        async with planned(port=taken - 3, rank=3) as (second, other):
            with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{taken}"):
                await run_rank(other)
            # It must fail before its group counts on it.
            assert second.events == ["pinged", "equipped"]
        stop.request()


@pytest.mark.medium
async def test_a_rank_is_not_ready_before_its_group_is_complete() -> None:
    stop = StopSignals()
    async with (
        planned() as (machine, plan),
        asyncio.timeout(BOUND_S),
        asyncio.TaskGroup() as group,
    ):
        machine.is_complete.clear()
        group.create_task(run_rank(plan, stop=stop))
        address = await machine.address
        async with grpc.aio.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="startup"))
            async for response in watch:
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    break
            request = health_pb2.HealthCheckRequest(service="readiness")
            response = await stub.Check(request)
            assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
            await machine.second_tick.wait()
            response = await stub.Check(request)
            assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
        machine.is_complete.set()
        await _ready(address)
        stop.request()


async def test_a_rank_that_fails_does_not_wait_for_its_group_to_leave() -> None:
    async with planned() as (machine, plan), asyncio.timeout(BOUND_S):
        machine.announce_error = ValueError("a bug")
        with pytest.raises(ValueError, match="a bug"):
            await run_rank(plan)
        assert machine.events[-1] == "loop stopped"
        assert machine.stop_timeout_s < 2.0


@dataclass(frozen=True)
class _Statistics:
    running: int = 3
    share: float = 0.5
    is_up: bool = True
    name: str = "x"
    failures: dict[str, int] = field(default_factory=lambda: {"store_down": 2})


def test_gauges_are_the_numbers_by_dotted_name() -> None:
    assert gauges("engine", _Statistics()) == {
        "engine.running": 3.0,
        "engine.share": 0.5,
        "engine.is_up": 1.0,
        "engine.failures.store_down": 2.0,
    }


def test_a_member_id_names_its_role_once() -> None:
    first, second = (new_member_id("decode", "decode-0", 3) for _ in range(2))
    assert first.startswith("decode-0-r3-")
    assert first != second
    assert new_member_id("decode", "west", 0).startswith("decode-west-r0-")
