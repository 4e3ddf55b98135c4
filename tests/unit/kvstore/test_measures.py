"""What a store client does, as metrics."""

from __future__ import annotations

import pytest

from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockMissing
from kvstore.measures import DropMeasures, StoreMeasures
from kvstore.store import KvStore
from runtime.metrics import Metrics
from tests.fakes.stores import FINGERPRINT, small_config

NAME = bytes(32)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def store(metrics: Metrics) -> KvStore:
    now = iter(range(10**6))
    clock = lambda: float(next(now))  # noqa: E731
    made = KvStore(MemoryBackend(lambda: 0.0), small_config(), fingerprint=FINGERPRINT, clock=clock)
    made.observe(StoreMeasures(metrics))
    return made


def test_writes_are_told_by_outcome(store: KvStore, metrics: Metrics) -> None:
    for _ in range(2):
        store.put_block(NAME, b"x" * 100, attempt=1)
    segments = "disagg_kv_written_segments_total"
    first = metrics.value(segments, outcome="new", component="kv")
    assert first >= 1
    assert metrics.value(segments, outcome="present", component="kv") == first
    assert metrics.value("disagg_kv_written_bytes_total", component="kv") == 100
    assert metrics.value("disagg_kv_op_duration_seconds", op="write") == 2


def test_reads_are_told_by_outcome(store: KvStore, metrics: Metrics) -> None:
    store.put_block(NAME, b"x" * 100, attempt=1)
    store.get_blocks([NAME])
    with pytest.raises(BlockMissing):
        store.get_blocks([b"\1" * 32])
    segments = "disagg_kv_read_segments_total"
    assert metrics.value(segments, outcome="ok", component="kv") >= 1
    assert metrics.value(segments, outcome="missing", component="kv") == 1
    assert metrics.value("disagg_kv_read_bytes_total", component="kv") == 100
    # One that failed took its time, too.
    assert metrics.value("disagg_kv_op_duration_seconds", op="read") == 2


def test_a_lookup_is_timed(store: KvStore, metrics: Metrics) -> None:
    store.lookup([NAME])
    assert metrics.value("disagg_kv_op_duration_seconds", op="lookup") == 1


def server(run_id: str, evicted: int, expired: int = 0) -> dict[str, object]:
    return {"run_id": run_id, "evicted_keys": evicted, "expired_keys": expired}


def test_what_servers_drop_is_counted_from_the_first_look_on(metrics: Metrics) -> None:
    drops, counted = DropMeasures(metrics), "disagg_kv_evictions_total"
    looks = [
        ([server("a", 1000, 50)], 0),  # of before this process
        ([server("a", 1003, 50)], 3),
        ([server("b", 4)], 7),  # started anew
        ([server("b", 6)], 9),
        ([server("b", 1)], 10),  # its totals were reset
        ([], 10),
        ([server("b", 2)], 11),
    ]
    for servers, total in looks:
        drops.told(servers)
        assert metrics.value(counted, cause="memory") == total
    assert metrics.value(counted, cause="ttl") == 0
    drops.told([server("b", 2, 3)])
    assert metrics.value(counted, cause="ttl") == 3


def test_one_server_of_several_that_began_anew_is_no_burst_of_the_others(metrics: Metrics) -> None:
    drops = DropMeasures(metrics)
    drops.told([server("a", 1000), server("b", 500)])
    drops.told([server("a", 1001), server("c", 2)])
    assert metrics.value("disagg_kv_evictions_total", cause="memory") == 3
    drops.told([server("b", 505), server("c", 2)])  # it was away for one look
    assert metrics.value("disagg_kv_evictions_total", cause="memory") == 8
