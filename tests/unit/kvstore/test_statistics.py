"""Counters add up, over threads too, and failures go by cause."""

import threading

import pytest

from kvstore.errors import BlockMissing, StoreDown
from kvstore.statistics import Counters, StoreStatistics, counted


def test_a_new_client_counted_nothing() -> None:
    assert Counters().snapshot() == StoreStatistics()


def test_counts_and_causes() -> None:
    counters = Counters()
    counters.add(commits=2, bytes_read=10)
    counters.add(commits=1)
    with pytest.raises(BlockMissing), counted(counters):
        raise BlockMissing("kv", 1)
    with pytest.raises(ValueError), counted(counters):
        raise ValueError("not ours, not counted")
    counters.failed(StoreDown("host", "gone"))
    snapshot = counters.snapshot()
    assert (snapshot.commits, snapshot.bytes_read) == (3, 10)
    assert snapshot.failures == {"missing_kv": 1, "store_down": 1}


def test_a_snapshot_does_not_change() -> None:
    counters = Counters()
    before = counters.snapshot()
    counters.failed(StoreDown("host", "gone"))
    assert before.failures == {}
    with pytest.raises(TypeError):
        before.failures["x"] = 1  # type: ignore[index]


def test_threads_lose_no_counts() -> None:
    counters = Counters()

    def work() -> None:
        for _ in range(500):
            counters.add(lookups=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot().lookups == 2000
