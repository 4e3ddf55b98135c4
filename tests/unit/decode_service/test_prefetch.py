"""Reading ahead saves reads after the ticket, costs no request, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from decode_service.decode import DecodeEvent, Resumed, SequenceRequest
from decode_service.prefetch import PrefetchRequest
from disagg import block_hash
from kvstore.errors import BlockCorrupt, StoreDown, TicketInvalid
from kvstore.keys import Component
from kvstore.payloads.sealing import PayloadRef
from runtime.errors import AlreadyRunning, Conflict, InvalidRequest, Reason
from tests.fakes.services import (
    BLOCK,
    Rig,
    outcome,
    prompt,
    run_decode,
    run_prefill,
    running_rig,
    sequence,
    tokens,
    until,
)
from tests.fakes.toy_runner import expected_tokens

PROMPT = tokens(37)
HASHES = block_hash.chain(PROMPT, BLOCK)
NUM_BLOCKS = len(HASHES)


class Progress:
    """Counts as a caller sends them, until it says that there are no more."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[int | None] = asyncio.Queue()

    def say(self, num_blocks: int) -> None:
        self._queue.put_nowait(num_blocks)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def counts(self) -> AsyncGenerator[int]:
        while (count := await self._queue.get()) is not None:
            yield count


def asked(request_id: str = "r-1", attempt: int = 1, **changes: object) -> PrefetchRequest:
    request = PrefetchRequest(
        request_id=request_id, attempt=attempt, token_ids=PROMPT, cache_salt="", credit_id="c"
    )
    return dataclasses.replace(request, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def reading(
    rig: Rig, request: PrefetchRequest | None = None
) -> AsyncIterator[tuple[Progress, asyncio.Task[object]]]:
    """A prefetch beside the body; cancelled behind it, as a caller who leaves would."""
    progress = Progress()
    task: asyncio.Task[object] = asyncio.create_task(
        rig.prefetches.run(request or asked(), progress.counts())
    )
    try:
        yield progress, task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def handed_over(rig: Rig, **changes: object) -> SequenceRequest:
    request = prompt(PROMPT, **changes)
    _, ticket = outcome(await run_prefill(rig, request))
    assert ticket is not None
    return sequence(ticket, PROMPT)


async def resumed(rig: Rig, request: SequenceRequest) -> Resumed:
    """Decodes, checks the tokens, and tells what came from where."""
    events: list[DecodeEvent] = []

    async def emit(event: DecodeEvent) -> None:
        events.append(event)

    await rig.decode.run(request, emit)
    found = [token.token_id for event in events[1:] for token in event.tokens]  # type: ignore[union-attr]
    assert found == expected_tokens(PROMPT, request.sampling)[1:]
    assert isinstance(events[0], Resumed)
    return events[0]


def num_read(rig: Rig) -> int:
    return rig.store.statistics().blocks_read


def count(rig: Rig, outcome: str) -> float:
    return rig.metrics.value("disagg_prefetch_total", outcome=outcome)


def blocks(rig: Rig, result: str) -> float:
    return rig.metrics.value("disagg_prefetch_blocks_total", result=result)


async def test_after_the_ticket_only_the_tail_is_read() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        async with reading(rig) as (progress, task):
            progress.say(4)
            await until(lambda: num_read(rig) == 4)
            assert rig.decode.statistics().prefetched_bytes == 4 * rig.layout.block_bytes
            progress.say(NUM_BLOCKS)
            progress.end()
            await until(lambda: num_read(rig) == NUM_BLOCKS)
            found = await resumed(rig, request)
            assert num_read(rig) == NUM_BLOCKS + 2, "entries of the open block, and the state"
            assert found.prefetched_bytes == NUM_BLOCKS * rig.layout.block_bytes
            assert found.num_bytes == found.prefetched_bytes + 4 + 16
            handed = await task
        assert handed.num_blocks == NUM_BLOCKS  # type: ignore[attr-defined]
        assert handed.num_bytes == found.prefetched_bytes  # type: ignore[attr-defined]
        assert count(rig, "used") == 1
        assert blocks(rig, "used") == NUM_BLOCKS
        await rig.assert_at_rest()


async def test_a_ticket_does_not_wait_for_blocks_that_were_not_read_ahead() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        async with reading(rig) as (progress, _):
            progress.say(3)
            await until(lambda: num_read(rig) == 3)
            found = await resumed(rig, request)
        assert found.prefetched_bytes == 3 * rig.layout.block_bytes
        assert num_read(rig) == NUM_BLOCKS + 2
        await rig.assert_at_rest()


async def test_a_read_that_is_on_is_waited_for_and_not_repeated() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        async with reading(rig) as (progress, _):
            rig.backend.stages["get"].close()
            progress.say(NUM_BLOCKS)
            await rig.backend.stages["get"].wait_reached()
            task = asyncio.create_task(resumed(rig, request))
            await until(lambda: rig.decode.statistics().bytes_in_flight > 0)
            await asyncio.sleep(0)
            rig.backend.stages["get"].open()
            assert (await task).prefetched_bytes == NUM_BLOCKS * rig.layout.block_bytes
        assert num_read(rig) == NUM_BLOCKS + 2
        await rig.assert_at_rest()


async def test_a_store_that_fails_meanwhile_is_counted_and_costs_nothing() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        async with reading(rig) as (progress, _):
            rig.backend.failures["get"] = StoreDown("memory", "unplugged")
            progress.say(5)
            await until(lambda: rig.store.statistics().failures.get("store_down") == 1)
            del rig.backend.failures["get"]
            progress.say(NUM_BLOCKS)
            progress.end()
            assert (await resumed(rig, request)).prefetched_bytes == 0
        assert count(rig, "store_down") == 1
        await rig.assert_at_rest()


def damage(rig: Rig, block_idx: int) -> None:
    """Flips a byte of a stored block."""
    ref = PayloadRef(component=Component.KV, name=HASHES[block_idx], position=block_idx)
    key = ref.key(rig.layout.fingerprint, 0)
    rig.backend._values[key].data[-1] ^= 1


async def test_a_block_that_is_damaged_after_it_was_read_ahead_does_no_harm() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        async with reading(rig) as (progress, _):
            progress.say(NUM_BLOCKS)
            await until(lambda: num_read(rig) == NUM_BLOCKS)
            for idx in range(NUM_BLOCKS):
                damage(rig, idx)
            found = await resumed(rig, request)
        assert found.prefetched_bytes == NUM_BLOCKS * rig.layout.block_bytes
        await rig.assert_at_rest()


async def test_a_block_that_is_damaged_before_is_taken_away_and_never_used() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        damage(rig, 3)
        async with reading(rig) as (progress, task):
            progress.say(NUM_BLOCKS)
            with pytest.raises(BlockCorrupt, match="kv payload 3"):
                await task
            assert rig.decode.statistics().prefetched_bytes == 0
            with pytest.raises(Exception, match="kv payload 3 is not in the store"):
                await run_decode(rig, request)
        assert count(rig, "corrupt_digest") == 1
        await rig.assert_at_rest()


async def test_blocks_that_are_not_the_tickets_are_read_again() -> None:
    async with running_rig() as rig:
        # Whoever wrote these computed something else; they fit their names all the same.
        for name in HASHES[:2]:
            rig.store.put_block(name, b"?" * rig.layout.block_bytes, attempt=1)
        async with reading(rig) as (progress, _):
            progress.say(2)
            await until(lambda: num_read(rig) == 2)
            request = await handed_over(rig)  # replaces both
            found = await resumed(rig, request)
        assert found.prefetched_bytes == 0
        assert blocks(rig, "refused") == 2
        await rig.assert_at_rest()


async def test_bytes_are_bounded_and_nobody_waits_for_them() -> None:
    async with running_rig(prefetched_bytes=4 * BLOCK * 5) as rig:
        rig.prefetches._batch = 2
        request = await handed_over(rig)
        async with reading(rig) as (progress, task):
            progress.say(NUM_BLOCKS)
            progress.end()
            await until(
                lambda: "r-1" in rig.prefetches._open and bool(rig.prefetches._open["r-1"].cause)
            )
            assert num_read(rig) == 4
            assert rig.prefetches.held_bytes == 4 * rig.layout.block_bytes
            found = await resumed(rig, request)
            await task
        assert found.prefetched_bytes == 4 * rig.layout.block_bytes
        assert count(rig, "no_room") == 1
        await rig.assert_at_rest()


@pytest.mark.parametrize("stage", ["waiting", "reading", "read"])
async def test_a_caller_who_leaves_frees_what_was_read(stage: str) -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        async with reading(rig) as (progress, _):
            await until(lambda: len(rig.prefetches) == 1)
            if stage == "reading":
                rig.backend.stages["get"].close()
                progress.say(3)
                await rig.backend.stages["get"].wait_reached()
            elif stage == "read":
                progress.say(3)
                await until(lambda: num_read(rig) == 3)
        rig.backend.stages["get"].open()
        assert count(rig, "abandoned") == 1
        assert (await resumed(rig, request)).prefetched_bytes == 0
        await rig.assert_at_rest()


async def test_a_sequence_that_fails_frees_what_it_took() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        async with reading(rig) as (progress, task):
            progress.say(NUM_BLOCKS)
            progress.end()
            await until(lambda: num_read(rig) == NUM_BLOCKS)
            rig.backend.failures["acquire"] = StoreDown("memory", "unplugged")
            with pytest.raises(StoreDown):
                await run_decode(rig, request)
            handed = await task
        assert handed.num_blocks == 0  # type: ignore[attr-defined]
        assert blocks(rig, "unused") == NUM_BLOCKS
        del rig.backend.failures["acquire"]
        rig.store.abort(request.ticket.handoff_id)
        await rig.assert_at_rest()


async def test_other_tokens_another_salt_and_another_attempt_find_nothing() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        for other in (
            asked(token_ids=(*PROMPT[:-1], 1)),
            asked(cache_salt="tenant-b"),
            asked(attempt=2),
            asked("r-2"),
        ):
            async with reading(rig, other):
                await until(lambda: len(rig.prefetches) == 1)
                async with rig.prefetches.taken(
                    request.request_id, request.attempt, PROMPT, ""
                ) as early:
                    assert early is None
        assert (await resumed(rig, request)).prefetched_bytes == 0
        await rig.assert_at_rest()


async def test_attempts_are_fenced() -> None:
    async with running_rig() as rig, reading(rig, asked(attempt=2)) as (_, older):
        await until(lambda: len(rig.prefetches) == 1)
        for attempt, kind in ((2, AlreadyRunning), (1, Conflict)):
            with pytest.raises(kind):
                await rig.prefetches.run(asked(attempt=attempt), Progress().counts())
        async with reading(rig, asked(attempt=3)):
            with pytest.raises(Conflict) as caught:
                await older
            assert caught.value.reason is Reason.STALE_ATTEMPT
        await rig.assert_at_rest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"request_id": "a/b"}, "request_id is 'a/b'"),
        ({"attempt": 0}, "attempt is 0"),
        ({"token_ids": ()}, "token_ids is empty"),
        ({"token_ids": (2**32,)}, "token ids in 0..2"),
    ],
)
async def test_what_names_no_hand_off_is_refused(changes: dict[str, object], message: str) -> None:
    async with running_rig() as rig:
        with pytest.raises((InvalidRequest, TicketInvalid), match=message):
            await rig.prefetches.run(asked(**changes), Progress().counts())  # type: ignore[arg-type]
        await rig.assert_at_rest()


async def test_more_blocks_than_there_are_tokens_are_refused() -> None:
    async with running_rig() as rig, reading(rig) as (progress, task):
        progress.say(NUM_BLOCKS + 1)
        with pytest.raises(InvalidRequest, match="the tokens have 9 full blocks"):
            await task
        await rig.assert_at_rest()


async def test_a_call_that_its_sequence_overtook_reads_nothing_and_is_counted_as_that() -> None:
    async with running_rig() as rig:
        # Its slot is in use, or was given back: either way there is nothing to read ahead of.
        with pytest.raises(Conflict, match="no open credit"):
            await rig.decode.prefetch(asked(), Progress().counts())
        assert count(rig, "overtaken") == 1
        assert num_read(rig) == 0
        await rig.assert_at_rest()
