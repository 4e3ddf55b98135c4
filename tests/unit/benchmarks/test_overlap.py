"""The overlap benchmark's arithmetic, and its run against a real system."""

import asyncio
from types import SimpleNamespace

import pytest

from benchmarks.overlap import compare, measure, summary, system
from benchmarks.serving import Sample


def test_a_comparison_is_made_of_pairs() -> None:
    assert compare([0.1, 1.0, 0.1], [0.2, 2.0, 0.2]) == {"on": 100.0, "off": 200.0, "ratio": 0.5}


def test_each_part_of_a_hand_off_is_reported() -> None:
    timing = SimpleNamespace(commit_us=2000, fetch_us=1000, prefetched_bytes=30, fetched_bytes=40)
    plain = SimpleNamespace(commit_us=4000, fetch_us=4000, prefetched_bytes=0, fetched_bytes=40)
    found = summary(
        [(Sample(first=1.0, second=1.25, later=0.1), timing)],
        [(Sample(first=1.0, second=1.5, later=0.1), plain)],
    )
    assert found["ttft_ms"]["ratio"] == 1.0
    assert found["gap_ms"] == {"on": 250.0, "off": 500.0, "ratio": 0.5}
    assert found["commit_ms"] == {"on": 2.0, "off": 4.0, "ratio": 0.5}
    assert found["fetch_ms"] == {"on": 1.0, "off": 4.0, "ratio": 0.25}
    assert found["prefetched_share"] == 0.75


@pytest.mark.medium
@pytest.mark.timeout(240)
def test_it_measures_a_running_system() -> None:
    """One system in both places; that the setting reaches one is `tests/integration`'s business."""
    with system(overlap=True, chunk_tokens=64) as address:
        [result] = asyncio.run(measure(address, address, 1, [300])).values()
    assert 0 < result["prefetched_share"] < 1
    assert result["second_token_ms"]["on"] > 0
