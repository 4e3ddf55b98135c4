"""Results of blocking calls reach exactly one owner."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from runtime.offload import clean_up, offload

WAIT_S = 5.0


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_the_caller_gets_the_result_and_nothing_is_disposed(
    executor: ThreadPoolExecutor,
) -> None:
    disposed: list[int] = []
    assert await offload(executor, lambda: 7, dispose=disposed.append) == 7
    assert disposed == []


async def test_the_caller_gets_the_exception(executor: ThreadPoolExecutor) -> None:
    def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await offload(executor, fail)


async def test_a_cancelled_call_that_runs_is_disposed_of_once_it_ends(
    executor: ThreadPoolExecutor,
) -> None:
    began, go_on, disposed = threading.Event(), threading.Event(), threading.Event()

    def acquire() -> str:
        began.set()
        assert go_on.wait(WAIT_S)
        return "lease"

    taken: list[str] = []

    def release(result: str) -> None:
        taken.append(result)
        disposed.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(offload(executor, acquire, dispose=release))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "the caller waits for its thread"
        go_on.set()
        await asyncio.wait([task])
    assert task.cancelled()
    assert await asyncio.to_thread(disposed.wait, WAIT_S)
    assert taken == ["lease"]


async def test_a_stuck_thread_holds_a_cancelled_caller_for_a_bounded_time(
    executor: ThreadPoolExecutor,
) -> None:
    began, go_on, disposed = threading.Event(), threading.Event(), threading.Event()

    def acquire() -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    def release(_: None) -> None:
        disposed.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(offload(executor, acquire, dispose=release, cleanup_s=0.01))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert not disposed.is_set()
    go_on.set()
    assert await asyncio.to_thread(disposed.wait, WAIT_S), "disposed of although nobody waited"


async def test_a_call_cancelled_before_its_thread_was_free_never_runs(
    executor: ThreadPoolExecutor,
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    ran: list[bool] = []
    async with asyncio.TaskGroup() as group:
        first = group.create_task(offload(executor, occupy))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        second = group.create_task(
            offload(executor, lambda: ran.append(True), dispose=lambda _: None, cleanup_s=0.01)
        )
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        go_on.set()
        await first
    assert second.cancelled()
    assert ran == []


async def test_a_result_that_arrived_with_the_cancellation_is_disposed_of() -> None:
    # The default executor has several threads, so dispose does not queue behind the call.
    done = threading.Event()
    disposed: list[int] = []

    def acquire() -> int:
        done.set()
        return 3

    async with asyncio.TaskGroup() as group:
        task = group.create_task(offload(None, acquire, dispose=disposed.append))
        await asyncio.sleep(0)
        # Block the loop itself: the result exists before the loop can hand it over.
        assert done.wait(WAIT_S)
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert disposed == [3]


async def test_a_failing_dispose_does_not_hide_the_cancellation(
    executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    began, go_on = threading.Event(), threading.Event()

    def acquire() -> int:
        began.set()
        assert go_on.wait(WAIT_S)
        return 1

    def release(_: int) -> None:
        raise OSError("store is down")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(offload(executor, acquire, dispose=release))
        assert await asyncio.to_thread(began.wait, WAIT_S)
        task.cancel()
        go_on.set()
        await asyncio.wait([task])
    assert task.cancelled()
    assert "abandoned result" in caplog.text


async def test_a_clean_up_survives_cancellation_and_its_own_failure(
    executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    began, go_on = threading.Event(), threading.Event()
    cleaned: list[bool] = []

    def release() -> None:
        began.set()
        assert go_on.wait(WAIT_S)
        cleaned.append(True)
        raise OSError("half done")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await clean_up(executor, release)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        assert await asyncio.to_thread(began.wait, WAIT_S)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        await asyncio.wait([task])
    assert task.cancelled()
    assert cleaned == [True]
    assert "clean-up failed" in caplog.text


async def test_a_stuck_clean_up_is_left_behind(executor: ThreadPoolExecutor) -> None:
    go_on, cleaned = threading.Event(), threading.Event()

    def release() -> None:
        assert go_on.wait(WAIT_S)
        cleaned.set()

    await clean_up(executor, release, cleanup_s=0.01)
    assert not cleaned.is_set()
    go_on.set()
    assert await asyncio.to_thread(cleaned.wait, WAIT_S)


async def test_the_thread_sees_the_variables_of_its_caller(executor: ThreadPoolExecutor) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="nobody")
    variable.set("caller")
    assert await offload(executor, variable.get) == "caller"
    await offload(executor, lambda: variable.set("thread"))
    assert variable.get() == "caller"
