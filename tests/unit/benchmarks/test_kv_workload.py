"""Both clients do the same work on the same bytes, and digests can be left out for comparison."""

from __future__ import annotations

import os

import pytest
import redis

import kvstore.digests
import kvstore.payloads.sealing
import kvstore.verification
from benchmarks.kv_workload import (
    Meter,
    OurWork,
    RedisPyWork,
    names_of,
    open_client,
    random_payloads,
)
from kvstore import embedded


@pytest.mark.medium
def test_every_way_moves_all_bytes() -> None:
    payloads, names = random_payloads(10, 3000, 1), names_of(10, 1)
    with embedded.start(max_memory_bytes=64 << 20) as server:
        store = open_client(server.url)
        client = redis.Redis(unix_socket_path=server.url.removeprefix("unix://"))
        ours, peer = OurWork(store, names, payloads), RedisPyWork(client, names, payloads)
        ways = (
            (ours.put, ours.get),
            (ours.put_plain, ours.get_plain),
            (peer.put_single, peer.get_single),
            (peer.put_pipelined, peer.get_pipelined),
        )
        meter = Meter(server.pid, 30_000)
        for number, (put, get) in enumerate(ways):
            client.flushall()
            meter.measure(f"put{number}", put, keep=True)
            assert client.dbsize() == 10
            meter.measure(f"get{number}", get, keep=True)
        meter.measure("warm-up", client.ping, keep=False)
        assert len(meter.series) == 8
        assert all(series.wall[0] > 0 for series in meter.series.values())
        client.close()
        store.close()


def test_digests_are_back_after_a_plain_run() -> None:
    before = kvstore.payloads.sealing.payload_digest
    store = open_client("memory://")
    work = OurWork(store, names_of(1, 1), [b"payload"])
    work.put_plain()
    work.get_plain()
    assert kvstore.payloads.sealing.payload_digest is before
    assert kvstore.digests.payload_digest is before
    assert kvstore.verification.payload_digest is before
    with pytest.raises(kvstore.errors.BlockCorrupt):
        work.get()  # the digest in its header is the constant


def test_a_meter_reads_the_clock_of_a_process() -> None:
    meter = Meter(os.getpid(), 10**9)
    meter.measure("spin", lambda: sum(range(300_000)) and None, keep=True)
    assert meter.series["spin"].client[0] > 0
    assert meter.series["spin"].server[0] > 0
