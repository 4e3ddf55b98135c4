"""Waiting for a place: who waits is woken, who leaves gives it back."""

from __future__ import annotations

import asyncio

import pytest

from balancer.admission import Admission
from balancer.journey.gate import Applicant, Gate
from runtime.clock import ManualClock
from runtime.errors import Overloaded, Reason
from runtime.metrics import Metrics


def make(max_running: int = 1, max_waiting: int = 2, max_wait_s: float = 5.0):
    admission = Admission(max_running=max_running, max_waiting=max_waiting)
    return admission, Gate(admission, ManualClock(), max_wait_s=max_wait_s, metrics=Metrics())


async def hold(gate: Gate, name: str, started: list[str], end: asyncio.Event) -> None:
    async with gate.slot(Applicant(request_id=name)):
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
    async with gate.slot(Applicant(request_id="a")):
        with pytest.raises(Overloaded, match="all places of the queue are taken") as caught:
            async with gate.slot(Applicant(request_id="b")):
                pytest.fail("there was no place")
    assert caught.value.reason is Reason.QUEUE_FULL
    assert caught.value.retry_after_s
    async with gate.slot(Applicant(request_id="b")):
        pass


async def test_waiting_is_bounded() -> None:
    admission, gate = make(max_wait_s=0.02)
    async with gate.slot(Applicant(request_id="a")):
        with pytest.raises(Overloaded, match=r"no place became free within 0\.02 s"):
            async with gate.slot(Applicant(request_id="b")):
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


async def test_what_cannot_be_in_time_is_refused_at_once_with_what_it_lacks() -> None:
    metrics = Metrics()
    gate = Gate(
        Admission(max_running=1, max_waiting=2), ManualClock(), max_wait_s=5.0, metrics=metrics
    )
    async with gate.slot(Applicant(request_id="a")):
        with pytest.raises(Overloaded, match=r"1\.0 s of waiting and 2\.0 s of prefill") as caught:
            async with gate.slot(Applicant(request_id="b", deadline=2.5, needs_s=2.0)):
                pytest.fail("it cannot be in time")
    assert caught.value.retry_after_s == pytest.approx(0.5)
    assert metrics.value("disagg_admission_rejections_total", reason="TOO_LATE") == 1


async def test_who_became_late_while_waiting_is_told_so_and_the_next_starts() -> None:
    clock = ManualClock()
    admission = Admission(max_running=1, max_waiting=4)
    gate = Gate(admission, clock, max_wait_s=5.0, metrics=Metrics())
    started: list[str] = []
    ends = {name: asyncio.Event() for name in "ac"}

    async def be_late() -> None:
        with pytest.raises(Overloaded, match="could not be served in time"):
            async with gate.slot(Applicant(request_id="b", deadline=3.0)):
                pytest.fail("it is late")
        started.append("b is late")

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(hold(gate, "a", started, ends["a"]))
        await asyncio.sleep(0)
        group.create_task(be_late())
        await asyncio.sleep(0)
        group.create_task(hold(gate, "c", started, ends["c"]))
        await asyncio.sleep(0)
        clock.advance(10.0)
        ends["a"].set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert sorted(started) == ["a", "b is late", "c"]
        ends["c"].set()
    admission.check_integrity()
    assert admission.statistics().running == 0


async def test_classes_wait_in_queues_of_their_own() -> None:
    admission = Admission(max_running=1, max_waiting=4, max_waiting_per_class=1, num_classes=2)
    gate = Gate(admission, ManualClock(), max_wait_s=5.0, metrics=Metrics())
    async with asyncio.TaskGroup() as group, gate.slot(Applicant(request_id="a")):
        end = asyncio.Event()
        waiting = group.create_task(hold(gate, "b", [], end))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="all places of the queue are taken"):
            async with gate.slot(Applicant(request_id="c")):
                pytest.fail("its queue is full")
        long = group.create_task(_enter(gate, Applicant(request_id="d", length_class=1)))
        await asyncio.sleep(0)
        assert admission.statistics().waiting_by_class == (1, 1)
        for task in (waiting, long):
            task.cancel()


async def _enter(gate: Gate, applicant: Applicant) -> None:
    async with gate.slot(applicant):
        pytest.fail("there was no place")


async def test_an_estimate_alone_refuses_nobody() -> None:
    _, gate = make()
    async with gate.slot(Applicant(request_id="a", deadline=1.0, needs_s=99.0)):
        with pytest.raises(Overloaded, match="could not be served in time"):
            async with gate.slot(Applicant(request_id="b", deadline=1.0, needs_s=99.0)):
                pytest.fail("somebody runs already")
