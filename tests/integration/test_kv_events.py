"""A prefill service tells prefix routers what it stored, as vLLM's engines do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc.aio
import msgpack
import pytest
import redis

from disagg import block_hash
from disagg.v1 import (
    common_pb2,
    events_pb2,
    events_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from kvstore import embedded
from tests.fakes.processes import ROOT, service

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed (extra: events)")

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]

LOCAL = "tcp://127.0.0.1:0"
BLOCK = 32
BOUND_S = 60.0


class Service:
    """A prefill service, its store, and a router that listens to its events."""

    def __init__(self, address: str, store: embedded.EmbeddedStore, record: dict[str, Any]) -> None:
        self.address = address
        self.store = store
        self._context = zmq.Context()
        self.stream = self._context.socket(zmq.SUB)
        self.stream.rcvtimeo = 500
        self.stream.subscribe(b"kv")
        self.stream.connect(record["endpoint"])
        self._replay = record["replay"]

    def close(self) -> None:
        self.stream.close(0)
        self._context.term()

    def missed(self) -> list[dict[str, Any]]:
        """All events so far, by asking for them."""
        found: list[dict[str, Any]] = []
        with self._context.socket(zmq.DEALER) as socket:
            socket.linger, socket.rcvtimeo = 0, 5000
            socket.connect(self._replay)
            socket.send_multipart((b"", bytes(8)))
            while True:
                _, number, batch = socket.recv_multipart()
                if int.from_bytes(number, "big", signed=True) == -1:
                    return found
                found += msgpack.unpackb(batch)[1]

    async def prefill(self, name: str, token_ids: list[int]) -> None:
        request = prefill_pb2.PrefillRequest(
            request_id=name,
            attempt=1,
            token_ids=token_ids,
            sampling=common_pb2.SamplingParams(seed=1, max_tokens=4, ignore_eos=True),
        )
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = prefill_pb2_grpc.PrefillServiceStub(channel)
            events = [event async for event in stub.Prefill(request, timeout=BOUND_S)]
        assert events[-1].committed.ticket.num_tokens == len(token_ids)


@pytest.fixture(scope="module")
def prefill() -> Iterator[Service]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(embedded.start())
        flags = ["--store", store.url, "--model", str(ROOT / "models" / "tiny-v4")]
        flags += ["--events-endpoint", LOCAL, "--events-replay-endpoint", LOCAL]
        flags += ["--events-topic", "kv"]
        group = stack.enter_context(service("prefill_service", *flags))
        record = group.wait_for("events.published", BOUND_S)
        [address] = group.wait_serving(1)
        started = Service(address, store, record)
        stack.callback(started.close)
        yield started


async def test_a_subscriber_sees_the_blocks_of_a_real_request(prefill: Service) -> None:
    for number in range(20):  # a subscription takes a moment to arrive
        tokens = [3 + number] * (3 * BLOCK + 5)
        await prefill.prefill(f"seen-{number}", tokens)
        with contextlib.suppress(zmq.Again):
            topic, sequence, batch = prefill.stream.recv_multipart()
            break
    else:
        raise AssertionError("no event came")
    assert topic == b"kv"
    assert int.from_bytes(sequence, "big") == number
    timestamp, [event], rank = msgpack.unpackb(batch)
    assert timestamp > 1.7e9
    assert rank == 0
    assert event["type"] == "BlockStored"
    names = block_hash.chain(tokens, BLOCK)
    assert event["block_hashes"] == [block_hash.low64(name) for name in names]
    assert event["parent_block_hash"] is None
    assert event["token_ids"] == tokens[: 3 * BLOCK]
    assert (event["block_size"], event["medium"], event["locality"]) == (BLOCK, "STORAGE", "REMOTE")


async def test_a_longer_prompt_tells_what_is_new_behind_what_is_known(prefill: Service) -> None:
    tokens = [100 + idx for idx in range(4 * BLOCK)]
    await prefill.prefill("short", tokens[: 2 * BLOCK])
    await prefill.prefill("long", tokens)
    first, second = prefill.missed()[-2:]
    low = [block_hash.low64(name) for name in block_hash.chain(tokens, BLOCK)]
    assert first["block_hashes"] == low[:2]
    assert (second["parent_block_hash"], second["block_hashes"]) == (low[1], low[2:])


async def test_the_same_events_come_over_grpc(prefill: Service) -> None:
    tokens = [600 + idx for idx in range(2 * BLOCK)]
    low = [block_hash.low64(name) for name in block_hash.chain(tokens, BLOCK)]
    async with grpc.aio.insecure_channel(prefill.address) as channel:
        stub = events_pb2_grpc.KvEventServiceStub(channel)
        call = stub.WatchEvents(events_pb2.WatchEventsRequest(), timeout=BOUND_S)
        snapshot = (await call.read()).snapshot
        assert snapshot.is_last
        assert not set(low) & set(snapshot.block_hashes)
        await prefill.prefill("watched", tokens)
        batch = (await call.read()).batch
        assert batch.sequence == snapshot.next_sequence
        assert list(batch.events[0].stored.block_hashes) == low
        assert list(batch.events[0].stored.token_ids) == tokens
        call.cancel()


async def test_a_block_that_a_read_finds_damaged_is_removed(prefill: Service) -> None:
    tokens = [300 + idx for idx in range(3 * BLOCK)]
    await prefill.prefill("sound", tokens)
    name = block_hash.chain(tokens, BLOCK)[0]
    with redis.Redis(unix_socket_path=prefill.store.url.removeprefix("unix://")) as server:
        [key] = list(server.scan_iter(f"dkv1:*:b:{{{name.hex()}}}:1:*", count=1000))
        end = server.strlen(key) - 1
        [last] = server.getrange(key, end, end)
        server.setrange(key, end, bytes([last ^ 1]))
    await prefill.prefill("again", [*tokens, 7])
    kinds = [(event["type"], event["block_hashes"][0]) for event in prefill.missed()[-2:]]
    low = block_hash.low64(name)
    assert kinds == [("BlockRemoved", low), ("BlockStored", low)]
