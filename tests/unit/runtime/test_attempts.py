"""One running attempt per request."""

import asyncio

import pytest

from runtime.attempts import AttemptFence
from runtime.errors import AlreadyRunning, Conflict, Reason


async def _hold(fence: AttemptFence, attempt: int, entered: asyncio.Event) -> None:
    with fence.enter("r-1", attempt):
        entered.set()
        await asyncio.Event().wait()


async def test_the_same_attempt_is_refused_while_it_runs_and_served_again_afterwards() -> None:
    fence = AttemptFence()
    with fence.enter("r-1", 1):
        with (
            pytest.raises(AlreadyRunning, match="'r-1' at") as caught,
            fence.enter("r-1", 1),
        ):
            pass
        assert caught.value.reason is Reason.DUPLICATE_REQUEST
        assert len(fence) == 1
    with fence.enter("r-1", 1):
        assert len(fence) == 1
    assert len(fence) == 0


async def test_an_older_attempt_is_refused() -> None:
    fence = AttemptFence()
    with fence.enter("r-1", 3):
        with pytest.raises(Conflict, match="attempt 2 is stale") as caught, fence.enter("r-1", 2):
            pass
        assert caught.value.reason is Reason.STALE_ATTEMPT
        with fence.enter("r-2", 1):
            assert len(fence) == 2


async def test_a_newer_attempt_ends_the_older_one() -> None:
    fence = AttemptFence()
    entered = asyncio.Event()
    old = asyncio.create_task(_hold(fence, 1, entered))
    await entered.wait()
    with fence.enter("r-1", 2):
        with pytest.raises(Conflict, match="attempt 2 took over"):
            await old
        assert len(fence) == 1, "the older one must not remove the newer one's entry"
    assert len(fence) == 0


async def test_a_cancellation_from_outside_stays_one() -> None:
    fence = AttemptFence()
    entered = asyncio.Event()
    task = asyncio.create_task(_hold(fence, 1, entered))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(fence) == 0


async def test_both_at_once_is_a_cancellation() -> None:
    fence = AttemptFence()
    entered = asyncio.Event()
    task = asyncio.create_task(_hold(fence, 1, entered))
    await entered.wait()
    with fence.enter("r-1", 2):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_outside_a_task_is_a_bug() -> None:
    with pytest.raises(RuntimeError), AttemptFence().enter("r-1", 1):
        pass
