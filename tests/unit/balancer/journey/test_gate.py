"""Waiting for a place: who waits is woken, who leaves gives it back."""

from __future__ import annotations

import asyncio

import pytest

from balancer.admission import Admission
from balancer.journey.gate import Gate
from runtime.clock import ManualClock
from runtime.errors import Overloaded, Reason


def make(max_running: int = 1, max_waiting: int = 2, max_wait_s: float = 5.0):
    admission = Admission(max_running=max_running, max_waiting=max_waiting)
    return admission, Gate(admission, ManualClock(), max_wait_s=max_wait_s)


async def hold(gate: Gate, name: str, started: list[str], end: asyncio.Event) -> None:
    async with gate.slot(name, priority=0):
        started.append(name)
        await end.wait()


async def test_places_pass_from_hand_to_hand() -> None:
    admission, gate = make()
    started: list[str] = []
    ends = {name: asyncio.Event() for name in "abc"}
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(hold(gate, name, started, ends[name]))
        for name in "abc":
            await asyncio.sleep(0.01)
            assert started == list("abc"[: "abc".index(name) + 1])
            ends[name].set()
    assert admission.statistics().running == 0


async def test_a_full_queue_refuses_with_a_hint() -> None:
    _, gate = make(max_waiting=0)
    async with gate.slot("a", priority=0):
        with pytest.raises(Overloaded, match="all places of the queue are taken") as caught:
            async with gate.slot("b", priority=0):
                pytest.fail("there was no place")
    assert caught.value.reason is Reason.QUEUE_FULL
    assert caught.value.retry_after_s
    async with gate.slot("b", priority=0):
        pass


async def test_waiting_is_bounded() -> None:
    admission, gate = make(max_wait_s=0.02)
    async with gate.slot("a", priority=0):
        with pytest.raises(Overloaded, match=r"no place became free within 0\.02 s"):
            async with gate.slot("b", priority=0):
                pytest.fail("there was no place")
    assert admission.statistics().waiting == 0


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_cancelled_waiter_leaves_no_trace(turns: int) -> None:
    admission, gate = make()
    started: list[str] = []
    end = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(hold(gate, "a", started, end))
        await asyncio.sleep(0)
        second = group.create_task(hold(gate, "b", started, end))
        await asyncio.sleep(0)
        first.cancel()
        for _ in range(turns):  # cancelled while waiting, while being woken, while running
            await asyncio.sleep(0)
        second.cancel()
    admission.check_integrity()
    assert admission.statistics().running == 0
    assert admission.statistics().waiting == 0
