"""Clean-up work is owned, bounded, and cannot hurt its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from balancer.journey.cleanup import CleanUps
from runtime.errors import Unavailable


async def test_leaving_waits_for_all_work() -> None:
    done = []

    async def work(name: str) -> None:
        await asyncio.sleep(0.01)
        done.append(name)

    async with CleanUps(limit_s=1.0) as cleanups:
        cleanups.spawn("a", work("a"))
        cleanups.spawn("b", work("b"))
        assert cleanups.running == 2
    assert done == ["a", "b"]
    assert cleanups.running == 0
    assert cleanups.failed.total() == 0


async def test_failures_are_counted_and_end_nothing() -> None:
    async def fails() -> None:
        raise Unavailable("gone")

    async def broken() -> None:
        raise KeyError("bug")

    async def hangs() -> None:
        await asyncio.Event().wait()

    async with CleanUps(limit_s=0.02) as cleanups:
        cleanups.spawn("fails", fails())
        cleanups.spawn("broken", broken())
        cleanups.spawn("hangs", hangs())
    assert cleanups.failed == {"fails": 1, "broken": 1, "hangs": 1}


@pytest.mark.medium
async def test_pieces_take_turns_and_each_has_its_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("balancer.journey.cleanup._MAX_AT_ONCE", 2)
    at_once: list[int] = []
    running, all_done = 0, asyncio.Event()

    async def work() -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(0.05)
        running -= 1
        if len(at_once) == 14:
            all_done.set()

    async with CleanUps(limit_s=0.3) as cleanups:
        for number in range(14):  # 0.35 s in turns: more than the time of one
            cleanups.spawn(str(number), work())
        await all_done.wait()
    assert max(at_once) == 2
    assert cleanups.failed.total() == 0


async def test_a_stop_waits_for_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("balancer.journey.cleanup._MAX_AT_ONCE", 1)
    began: list[str] = []

    async def hangs(name: str) -> None:
        began.append(name)
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    started = loop.time()
    async with CleanUps(limit_s=0.02) as cleanups:
        for number in range(20):
            cleanups.spawn("hangs", hangs(str(number)))
    assert len(began) == 20
    assert loop.time() - started < 0.3, "20 turns would take 0.4 s"
    assert cleanups.failed == {"hangs": 20}


async def test_what_ends_the_body_is_not_wrapped_and_ends_no_piece() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.append(1)

    with pytest.raises(KeyError, match="mine"):
        await _fail_inside(work())
    assert done == [1]


async def _fail_inside(work: Coroutine[object, object, object]) -> None:
    async with CleanUps(limit_s=1.0) as cleanups:
        cleanups.spawn("a", work)
        raise KeyError("mine")


async def test_work_after_the_end_is_dropped_and_counted() -> None:
    async def work() -> None:
        raise AssertionError("ran")

    async with CleanUps(limit_s=1.0) as cleanups:
        pass
    cleanups.spawn("late", work())
    assert cleanups.failed == {"late": 1}


class Slots:
    """Something that is taken by a call and given back by another."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def take(self) -> str:
        self.is_asked.set()
        await self.may_answer.wait()
        self.held.add("slot")
        return "slot"

    async def give_back(self, name: str) -> None:
        self.held.remove(name)


async def test_what_is_taken_is_handed_over() -> None:
    slots = Slots()
    slots.may_answer.set()
    async with CleanUps(limit_s=1.0) as cleanups:
        assert await cleanups.take("slot", slots.take(), slots.give_back) == "slot"
    assert slots.held == {"slot"}
    assert cleanups.running == 0


@pytest.mark.parametrize("is_answered_first", [False, True])
async def test_what_is_taken_for_somebody_who_left_is_given_back(is_answered_first: bool) -> None:
    slots = Slots()
    async with CleanUps(limit_s=1.0) as cleanups, asyncio.timeout(5):
        caller = asyncio.create_task(cleanups.take("slot", slots.take(), slots.give_back))
        await slots.is_asked.wait()
        if is_answered_first:  # the answer is there, and the caller has not been told yet
            slots.may_answer.set()
            await asyncio.sleep(0)  # one turn of the loop: the call ends, its caller comes next
            assert slots.held
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        slots.may_answer.set()
    assert slots.held == set()
    assert (cleanups.running, cleanups.failed.total()) == (0, 0)


async def test_a_call_that_took_nothing_says_why_and_ends_nothing() -> None:
    async def refuses() -> str:
        raise Unavailable("full")

    async def give_back(_name: str) -> None:
        raise AssertionError("nothing was taken")

    async with CleanUps(limit_s=1.0) as cleanups:
        with pytest.raises(Unavailable, match="full"):
            await cleanups.take("slot", refuses(), give_back)
    assert (cleanups.running, cleanups.failed.total()) == (0, 0)
