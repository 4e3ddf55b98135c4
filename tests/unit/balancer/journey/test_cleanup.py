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
