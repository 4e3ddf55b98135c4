"""Stored blocks are reported in runs from the first one, between the path's own events."""

from __future__ import annotations

import asyncio
import threading

import pytest

from prefill_service.stored import BlocksStored, StoredBlocks, reported


async def test_only_the_run_of_leading_blocks_counts() -> None:
    stored = StoredBlocks(2)
    assert await stored.grown() == 2, "those that were there before"
    for _ in range(3):
        stored.expect()
    stored.note(3)
    stored.note(4)
    waiting = asyncio.ensure_future(stored.grown())
    await asyncio.sleep(0)
    assert not waiting.done(), "block 2 is missing"
    threading.Thread(target=stored.note, args=(2,)).start()
    assert await waiting == 5
    stored.close()
    assert await stored.grown() is None


async def test_what_is_written_together_is_one_report() -> None:
    stored = StoredBlocks(0)
    for _ in range(40):
        stored.expect()
    waiting = asyncio.ensure_future(stored.grown())
    for idx in range(15):
        stored.note(idx)
    await asyncio.sleep(0)
    assert not waiting.done(), "more are on their way"
    stored.note(15)
    assert await waiting == 16
    for idx in range(16, 40):
        stored.note(idx)
    assert await stored.grown() == 40


async def test_reports_come_between_the_events_of_the_body_and_end_with_it() -> None:
    events: list[object] = []
    reports_may_go = asyncio.Event()

    async def emit(event: object) -> None:
        if isinstance(event, BlocksStored):
            await reports_may_go.wait()
        events.append(event)

    stored = StoredBlocks(3)
    async with reported(stored, emit) as emit_in_turn:
        await asyncio.sleep(0)
        mine = asyncio.ensure_future(emit_in_turn("mine"))
        await asyncio.sleep(0)
        assert events == [], "a report is being sent, so the body waits for its turn"
        reports_may_go.set()
        await mine
        stored.expect()
        stored.note(3)
        stored.close()
        await emit_in_turn("last")
    assert events == [BlocksStored(num_blocks=3), "mine", "last"]


@pytest.mark.parametrize("error", [ValueError("body"), asyncio.CancelledError()])
async def test_what_ends_the_body_goes_on_as_it_is(error: BaseException) -> None:
    stuck = asyncio.Event()

    async def emit(_: object) -> None:
        stuck.set()
        await asyncio.Event().wait()

    async def body() -> None:
        async with reported(StoredBlocks(1), emit):
            await stuck.wait()
            raise error

    with pytest.raises(type(error)) as caught:
        await body()
    assert caught.value is error


async def test_a_report_that_cannot_be_sent_leaves_the_fault_to_the_body() -> None:
    async def emit(event: object) -> None:
        raise OSError(f"cannot send {event}")

    async def body() -> None:
        async with reported(StoredBlocks(1), emit) as emit_in_turn:
            await asyncio.sleep(0)
            await emit_in_turn("mine")

    with pytest.raises(OSError, match="cannot send mine"):
        await body()


async def test_a_block_that_is_noted_after_the_loop_is_gone_harms_nobody() -> None:
    stored: list[StoredBlocks] = []

    async def make() -> None:
        stored.append(StoredBlocks(0))

    await asyncio.to_thread(asyncio.run, make())
    stored[0].expect()
    stored[0].note(0)
