"""Blocks go out while others compute; a ticket is committed over all of them or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from disagg import block_hash
from kvstore import KvStore, KvStoreConfig
from kvstore.errors import BlockCorrupt, StoreDown
from prefill_service.boundary import BoundaryPolicy
from prefill_service.publisher import (
    Publication,
    PublishFailed,
    PublishPlan,
    handoff_bytes,
)
from runtime.budget import Budget
from runtime.clock import ManualClock
from runtime.metrics import Metrics
from tests.fakes.services import BLOCK, StagedBackend, ToyLayout, tokens, until

PROMPT = tokens(3 * BLOCK + 2)
HASHES = tuple(block_hash.chain(PROMPT, BLOCK))
BLOCKS = [bytes([idx]) * 16 for idx in range(3)]
STATE = b"s" * 16


class Desk:
    """A store, a budget, and publications of one prompt."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.backend = StagedBackend(ManualClock().now)
        self.store = KvStore(
            self.backend,
            KvStoreConfig(block_tokens=BLOCK),
            fingerprint=ToyLayout.fingerprint,
            clock=ManualClock().now,
        )
        self.budget = Budget("bytes", 1000, max_waiting=1)
        self.metrics = Metrics()
        self.executor = executor

    async def publication(
        self,
        stored: tuple[bytes, ...] = (),
        every_blocks: int = 2,
        amount: int = 100,
        distrusts_store: bool = False,
        is_state_stored: bool = False,
    ) -> Publication:
        plan = PublishPlan(
            request_id="r-1",
            attempt=1,
            num_tokens=len(PROMPT),
            block_tokens=BLOCK,
            block_hashes=HASHES,
            tail_tokens=PROMPT[3 * BLOCK :],
            stored_digests=stored,
            is_state_stored=is_state_stored,
            distrusts_store=distrusts_store,
        )
        return Publication(
            plan,
            store=self.store,
            policy=BoundaryPolicy(every_blocks=every_blocks),
            executor=self.executor,
            writers=self.executor,
            grant=await self.budget.take(amount),
            metrics=self.metrics,
        )


@asynccontextmanager
async def desk(num_threads: int = 2) -> AsyncIterator[Desk]:
    with ThreadPoolExecutor(num_threads) as executor:
        found = Desk(executor)
        try:
            yield found
        finally:
            for stage in found.backend.stages.values():
                stage.open()


def save_all(publication: Publication, first: int = 0) -> None:
    for idx in range(first, 3):
        publication.save_block(idx, BLOCKS[idx])
    publication.save_state(3 * BLOCK, STATE)
    publication.save_tail(len(PROMPT), b"tail", STATE)


def test_the_bytes_of_a_prompt_bound_what_it_can_hold() -> None:
    layout = ToyLayout()
    policy = BoundaryPolicy(every_blocks=2)
    # 9 blocks, 1 token behind them, the states after 2, 4, 6, 8 and 9 blocks, tail's and prefix's.
    assert handoff_bytes(layout, 37, policy) == 9 * 16 + 4 + 7 * 16  # type: ignore[arg-type]
    assert handoff_bytes(layout, 1, policy) == 4 + 2 * 16  # type: ignore[arg-type]


async def test_a_ticket_is_committed_over_everything_saved() -> None:
    async with desk() as here, await here.publication() as publication:
        save_all(publication)
        ticket = await publication.commit(first_token=7)
        assert here.budget.statistics().held == 0
        assert publication.published_bytes == 3 * 16 + 16 + 4 + 16
        with here.store.open_ticket(ticket, PROMPT) as reader:
            state = reader.fetch()
        assert [bytes(block) for block in state.blocks] == BLOCKS
        assert (bytes(state.tail_kv), bytes(state.tail_state)) == (b"tail", STATE)


async def test_stored_blocks_are_named_but_neither_written_nor_asked_for() -> None:
    async with desk() as here:
        digests = tuple(
            here.store.put_block(HASHES[idx], BLOCKS[idx], attempt=1) for idx in range(2)
        )
        written = here.store.statistics().blocks_written
        async with await here.publication(stored=digests) as replayed:
            assert not replayed.wants_state(BLOCK), "before its end no state is right"
            assert replayed.wants_state(2 * BLOCK), "a rebuilt state saves the next replay"
        async with await here.publication(stored=digests, is_state_stored=True) as publication:
            assert not publication.wants_state(2 * BLOCK), "that state is where it came from"
            assert publication.wants_state(3 * BLOCK)
            assert not publication.wants_state(3 * BLOCK + 1)
            publication.save_block(0, b"never looked at")
            save_all(publication, first=2)
            ticket = await publication.commit(first_token=7)
        assert here.store.statistics().blocks_written == written + 4
        with here.store.open_ticket(ticket, PROMPT) as reader:
            assert [bytes(block) for block in reader.fetch().blocks] == BLOCKS


async def test_the_engine_thread_is_never_held_up_and_bytes_return_write_by_write() -> None:
    async with desk(num_threads=1) as here, await here.publication() as publication:
        here.backend.stages["put"].close()
        save_all(publication)  # returns although nothing can be written
        await here.backend.stages["put"].wait_reached()
        assert here.budget.statistics().held == 100
        assert publication.published_bytes == 0
        here.backend.stages["put"].open()
        await publication.wait_written()
        assert here.budget.statistics().held == 100 - 4 * 16
        assert publication.published_bytes == 4 * 16


async def test_a_failed_write_surfaces_and_stops_the_rest() -> None:
    async with desk(num_threads=1) as here, await here.publication() as publication:
        here.backend.failures["put"] = StoreDown("memory", "unplugged")
        publication.save_block(0, BLOCKS[0])
        with pytest.raises(StoreDown):
            await publication.wait_written()
        del here.backend.failures["put"]
        publication.save_block(1, BLOCKS[1])
        with pytest.raises(StoreDown):
            publication.raise_if_failed()
        with pytest.raises(StoreDown):
            await publication.commit(first_token=7)
        assert here.store.statistics().blocks_written == 0


async def test_other_bytes_under_a_name_are_replaced_and_counted() -> None:
    async with desk() as here, await here.publication() as publication:
        here.store.put_block(HASHES[1], b"x" * 16, attempt=1)
        save_all(publication)
        ticket = await publication.commit(first_token=7)
        assert here.metrics.value("disagg_kv_checksum_failures_total", component="kv") == 1
        with here.store.open_ticket(ticket, PROMPT) as reader:
            assert [bytes(block) for block in reader.fetch().blocks] == BLOCKS


async def test_who_distrusts_the_store_replaces_what_is_damaged() -> None:
    async with desk() as here:
        async with await here.publication() as first:
            save_all(first)
            here.store.abort((await first.commit(first_token=7)).handoff_id)
        for value in here.backend._values.values():
            if len(value.data) == 64 + 16:  # blocks and states; a header and 16 bytes
                value.data[-1] ^= 1
        for distrusts in (False, True):
            async with await here.publication(distrusts_store=distrusts) as publication:
                save_all(publication)
                ticket = await publication.commit(first_token=7)
            counted = here.metrics.value("disagg_kv_checksum_failures_total", component="kv")
            assert counted == (3 if distrusts else 0), "equal headers are taken for equal bytes"
            if distrusts:
                with here.store.open_ticket(ticket, PROMPT) as reader:
                    assert [bytes(block) for block in reader.fetch().blocks] == BLOCKS
                assert bytes(here.store.get_state(HASHES[-1])) == STATE


async def test_bytes_that_cannot_be_replaced_fail_the_prompt() -> None:
    async with desk() as here, await here.publication() as publication:
        here.backend.failures["put"] = BlockCorrupt("kv", 0, "conflict", "again and again")
        save_all(publication)
        with pytest.raises(BlockCorrupt):
            await publication.commit(first_token=7)


async def test_less_than_the_whole_prompt_is_never_committed() -> None:
    async with desk() as here:
        async with await here.publication() as publication:
            publication.save_block(0, BLOCKS[0])
            publication.save_block(2, BLOCKS[2])
            with pytest.raises(PublishFailed, match=r"blocks \[1\] and a tail at no of 14 tokens"):
                await publication.commit(first_token=7)
        assert here.store.audit() == []


async def test_what_is_left_uncommitted_writes_nothing_more_and_holds_nothing() -> None:
    async with desk(num_threads=1) as here:
        here.backend.stages["put"].close()
        async with await here.publication() as publication:
            save_all(publication)
            await here.backend.stages["put"].wait_reached()
        assert here.budget.statistics().held == 0
        here.backend.stages["put"].open()
        publication.save_block(2, BLOCKS[2])
        done = asyncio.get_running_loop().run_in_executor(here.executor, lambda: None)
        await done
        assert here.store.statistics().blocks_written <= 1, "the one that was at the door"
        assert here.budget.statistics().held == 0


async def test_a_cancelled_commit_is_taken_back() -> None:
    async with desk() as here:
        async with await here.publication() as publication:
            save_all(publication)
            here.backend.stages["commit"].close()
            task = asyncio.create_task(publication.commit(first_token=7))
            await here.backend.stages["commit"].wait_reached()
            task.cancel()
            await asyncio.sleep(0)
            here.backend.stages["commit"].open()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: here.store.audit() == [])
