"""The gRPC face of a rank's KV events: a snapshot, then every batch its publisher numbers.

The batches are those of the ZeroMQ stream, with the same numbers, as messages instead of
MessagePack. A caller is served as fast as he reads; one who falls behind the ring is told so.
"""

import asyncio
from typing import Any

import grpc.aio
import msgpack

from disagg.v1 import events_pb2, events_pb2_grpc
from kvstore.events.announcer import Announcer
from kvstore.events.ring import Gap, Ring
from runtime.errors import Corrupt, OutOfRange, Reason
from runtime.metrics import Metrics

Context = grpc.aio.ServicerContext[events_pb2.WatchEventsRequest, events_pb2.WatchEventsResponse]

_SNAPSHOT_BLOCKS = 8192  # of one message


class KvEventServicer(events_pb2_grpc.KvEventServiceServicer):
    """Serves what a publisher numbered.

    Args:
        ring: Its batches.
        announcer: Knows which blocks are stored.
    """

    def __init__(self, ring: Ring, announcer: Announcer, metrics: Metrics) -> None:
        self._ring = ring
        self._announcer = announcer
        self._metrics = metrics

    async def WatchEvents(  # type: ignore[override]  # writes its responses, see runtime.interceptors
        self, request: events_pb2.WatchEventsRequest, context: Context
    ) -> None:
        """See events.proto."""
        number = request.start_sequence
        if number:
            self._check_kept(number)
        else:
            number = await self._write_snapshot(context)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._ring.watched(tell):
            while True:
                changed.clear()
                try:
                    batches = self._ring.since(number)
                except Gap as gap:
                    self._metrics.count("disagg_kv_events_dropped_total", type="batch")
                    raise Corrupt(
                        f"{gap}: this reader is too slow; start over with start_sequence 0",
                        reason=Reason.EVENTS_LOST,
                    ) from gap
                for sequence, batch in batches:
                    message = events_pb2.WatchEventsResponse(batch=batch_message(sequence, batch))
                    await context.write(message)
                    number = sequence + 1
                if not batches:
                    await changed.wait()

    def _check_kept(self, number: int) -> None:
        try:
            following = self._ring.next_number
            self._ring.since(number)
        except Gap as gap:
            raise OutOfRange(f"start_sequence: {gap}; start over with 0") from gap
        if number > following:
            raise OutOfRange(
                f"start_sequence is {number}, but the next batch is {following}: this is another "
                "life of the rank; start over with 0"
            )

    async def _write_snapshot(self, context: Context) -> int:
        # Batches from here on may repeat what the snapshot knows, but nothing lies between.
        following = self._ring.next_number
        names = self._announcer.snapshot()
        for start in range(0, max(1, len(names)), _SNAPSHOT_BLOCKS):
            part = events_pb2.KvSnapshot(
                block_hashes=names[start : start + _SNAPSHOT_BLOCKS],
                is_last=start + _SNAPSHOT_BLOCKS >= len(names),
                next_sequence=following,
            )
            await context.write(events_pb2.WatchEventsResponse(snapshot=part))
        return following


def batch_message(sequence: int, batch: bytes) -> events_pb2.KvEventBatch:
    """The message of a batch in the form of `kvstore.events.form`."""
    time_s, events, rank = msgpack.unpackb(batch)
    message = events_pb2.KvEventBatch(
        sequence=sequence, dp_rank=rank, events=[_event(event) for event in events]
    )
    message.time.FromNanoseconds(int(time_s * 1e6) * 1000)
    return message


def _event(event: dict[str, Any]) -> events_pb2.KvEvent:  # Any: as MessagePack has it
    if event["type"] == "BlockRemoved":
        removed = events_pb2.KvBlocksRemoved(block_hashes=event["block_hashes"])
        return events_pb2.KvEvent(removed=removed)
    stored = events_pb2.KvBlocksStored(
        block_hashes=event["block_hashes"],
        parent_block_hash=event["parent_block_hash"],
        token_ids=event["token_ids"],
        block_tokens=event["block_size"],
    )
    return events_pb2.KvEvent(stored=stored)
