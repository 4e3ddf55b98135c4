"""KV events over gRPC: a snapshot, every batch in order, and what cannot be kept is said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from disagg import block_hash
from disagg.v1 import events_pb2, events_pb2_grpc
from kvstore.events.announcer import Announcer
from kvstore.events.form import Event, encode_batch
from kvstore.events.ring import Ring
from runtime import status
from runtime.errors import ErrorMap, Reason
from runtime.metrics import Metrics
from serving import watch
from serving.watch import KvEventServicer
from tests.fakes.services import serving

SERVICE = events_pb2.DESCRIPTOR.services_by_name["KvEventService"].full_name
HASHES = block_hash.chain(list(range(12)), 4)
LOW = [block_hash.low64(name) for name in HASHES]


@dataclass
class Face:
    stub: events_pb2_grpc.KvEventServiceAsyncStub
    ring: Ring
    announcer: Announcer

    def store(self, num_blocks: int) -> None:
        """As a thread that commits."""
        thread = threading.Thread(
            target=self.announcer.blocks_stored, args=(HASHES[:num_blocks], 4, range(12))
        )
        thread.start()
        thread.join()

    def watch(self, start: int = 0):  # type: ignore[no-untyped-def]
        return self.stub.WatchEvents(
            events_pb2.WatchEventsRequest(start_sequence=start), timeout=20
        )


@asynccontextmanager
async def face(capacity: int = 100) -> AsyncIterator[Face]:
    ring = Ring(capacity)

    def publish(events: list[Event]) -> None:
        ring.append(encode_batch(1.5, events, 3))

    announcer = Announcer(publish)  # type: ignore[arg-type]

    def register(server: grpc.aio.Server) -> None:
        servicer = KvEventServicer(ring, announcer, Metrics())
        events_pb2_grpc.add_KvEventServiceServicer_to_server(servicer, server)

    async with serving("prefill", [SERVICE], frozenset(), ErrorMap(), register) as channel:
        yield Face(events_pb2_grpc.KvEventServiceStub(channel), ring, announcer)


async def test_a_watcher_gets_a_snapshot_and_then_every_change() -> None:
    async with face() as here:
        here.store(2)
        call = here.watch()
        first = (await call.read()).snapshot
        assert (list(first.block_hashes), first.is_last, first.next_sequence) == (LOW[:2], True, 1)
        here.store(3)
        batch = (await call.read()).batch
        assert (batch.sequence, batch.dp_rank, batch.time.ToNanoseconds()) == (1, 3, 1_500_000_000)
        [event] = batch.events
        assert list(event.stored.block_hashes) == LOW[2:]
        assert event.stored.parent_block_hash == LOW[1]
        assert list(event.stored.token_ids) == [8, 9, 10, 11]
        assert event.stored.block_tokens == 4
        here.announcer.blocks_removed(HASHES[:1])
        batch = (await call.read()).batch
        assert batch.sequence == 2
        assert list(batch.events[0].removed.block_hashes) == LOW[:1]
        call.cancel()


async def test_a_chain_that_begins_has_no_parent() -> None:
    async with face() as here:
        here.store(1)
        call = here.watch()
        await call.read()
        resumed = here.watch(1)
        here.store(2)
        batch = (await resumed.read()).batch
        assert batch.events[0].stored.HasField("parent_block_hash")
        here.announcer.blocks_removed(HASHES)
        here.store(1)
        batches = [(await resumed.read()).batch for _ in range(2)]
        assert [batch.sequence for batch in batches] == [2, 3]
        assert not batches[1].events[0].stored.HasField("parent_block_hash")
        for running in (call, resumed):
            running.cancel()


async def test_a_large_snapshot_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SNAPSHOT_BLOCKS", 2)
    async with face() as here:
        here.store(3)
        call = here.watch()
        parts = [(await call.read()).snapshot for _ in range(2)]
        assert [list(part.block_hashes) for part in parts] == [LOW[:2], LOW[2:]]
        assert [part.is_last for part in parts] == [False, True]
        call.cancel()


async def test_nothing_stored_is_an_empty_snapshot() -> None:
    async with face() as here:
        call = here.watch()
        first = (await call.read()).snapshot
        assert (list(first.block_hashes), first.is_last, first.next_sequence) == ([], True, 0)
        call.cancel()


@pytest.mark.parametrize(
    ("start", "says"), [(1, "batch 1 is no longer kept, the oldest one is 2"), (9, "next batch is")]
)
async def test_what_is_not_kept_is_out_of_range(start: int, says: str) -> None:
    async with face(capacity=1) as here:
        for num_blocks in (1, 2, 3):
            here.store(num_blocks)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await here.watch(start).read()
        assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
        error = status.from_rpc_error(caught.value)
        assert error.reason is Reason.EVENTS_GONE
        assert says in error.message


async def test_a_reader_that_falls_behind_is_told() -> None:
    async with face(capacity=1) as here:
        call = here.watch()
        await call.read()
        await asyncio.sleep(0)
        for num_blocks in (1, 2, 3):  # at once, so that the first two are gone when it looks
            here.announcer.blocks_stored(HASHES[:num_blocks], 4, ())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        error = status.from_rpc_error(caught.value)
        assert caught.value.code() is grpc.StatusCode.DATA_LOSS
        assert error.reason is Reason.EVENTS_LOST
