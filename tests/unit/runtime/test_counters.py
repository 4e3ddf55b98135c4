"""Named counts."""

import threading

import pytest

from runtime.counters import Counters


def test_counts_add_up_over_threads() -> None:
    counters = Counters()
    threads = [
        threading.Thread(target=lambda: [counters.add("hits") for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters.add("bytes", 12.0)
    assert counters.value("hits") == 2000
    assert counters.snapshot() == {"hits": 2000, "bytes": 12}


def test_an_unknown_name_is_zero_and_a_negative_amount_is_refused() -> None:
    counters = Counters()
    assert counters.value("nothing") == 0
    with pytest.raises(ValueError, match="misses: a count never sinks, got -1"):
        counters.add("misses", -1)
    assert counters.snapshot() == {}
