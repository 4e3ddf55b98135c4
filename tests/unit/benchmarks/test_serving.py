"""The serving benchmark's arithmetic, and its run against a real system."""

import asyncio

import pytest

from benchmarks.serving import Sample, _compare, _sample, measure, running_system


def test_times_count_from_sending() -> None:
    assert _sample(10.0, [10.5, 10.75, 11.25, 11.75]) == Sample(first=0.5, second=0.75, later=0.5)


def test_a_comparison_is_made_of_pairs() -> None:
    found = _compare([0.2, 2.0, 0.2], [0.1, 1.0, 0.1])
    assert found == {"system": 200.0, "monolith": 100.0, "ratio": 2.0}


@pytest.mark.medium
@pytest.mark.timeout(240)
def test_it_measures_a_running_system() -> None:
    with running_system("--prefill-ranks", "1", "--decode-ranks", "1") as address:
        result = asyncio.run(measure(address, 1, 70, 4))
    assert result["ttft_ms"]["system"] > 0
    assert result["second_token_ms"]["ratio"] > 0
    # Two blocks and a state travel; both sides count what the layout says.
    layout_bytes = 70 // 32 * 32 * result["bytes"]["layout_per_token"] + result["bytes"]["state"]
    assert result["bytes"]["fetched"] >= layout_bytes
    assert result["prefix_ttft_ms"]["warm"] > 0
