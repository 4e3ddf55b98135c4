"""The arithmetic of the overhead benchmark, and a small run of it against real systems."""

import asyncio
import contextlib
import os
import time

import pytest

from benchmarks.telemetry import (
    _SENT_S,
    RATIOS,
    cpu_s,
    interval_of_median,
    measure,
    overhead_of,
    process,
    require_load,
    running,
    span_us,
    traces_at,
)


def test_an_overhead_is_what_a_pair_of_rounds_differs_by() -> None:
    rates = {"off": [100.0, 200.0, 100.0], "all": [90.0, 180.0, 50.0]}
    assert overhead_of(rates, "all", more_is_better=True) == {
        "median": 0.1,
        "low": 0.1,
        "high": 0.3,
        "sure": [0.1, 0.5],
    }
    cpu = {"off": [1.0, 2.0], "all": [1.1, 2.2]}
    assert overhead_of(cpu, "all", more_is_better=False)["median"] == 0.1


def test_how_sure_a_median_is() -> None:
    # The ranks of published tables of the sign test at 95 %: 2nd of 10, 6th of 20, 40th of 100.
    assert interval_of_median(range(1, 11)) == (2, 9)
    assert interval_of_median(range(1, 21)) == (6, 15)
    assert interval_of_median(range(1, 101)) == (40, 61)
    assert interval_of_median([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval_of_median([7.0]) == (7.0, 7.0)


def test_processor_time_only_grows() -> None:
    before = cpu_s([os.getpid()])
    sum(range(2_000_000))
    assert cpu_s([os.getpid()]) >= before > 0


def test_a_cost_of_nothing_is_not_told() -> None:
    require_load(traces=1, spans=1, reads=1)
    with pytest.raises(SystemExit, match="no traces arrived, no pages were read, so the overheads"):
        require_load(traces=0, spans=3, reads=0)


def test_a_span_costs_something_and_not_a_millisecond() -> None:
    assert 1 < span_us(repetitions=1, spans=200) < 1_000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_measures_running_systems() -> None:
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(process("cli.traces.collector"))["address"]
        systems = {name: stack.enter_context(running(name, collector)) for name in RATIOS}
        found = asyncio.run(measure(systems, rounds=2, clients=2, tokens=4))
        time.sleep(_SENT_S)
        assert traces_at(collector) >= 4  # at least those of `all`
    assert all(len(rates) == 2 and min(rates) > 0 for rates in found.rates.values())
    assert found.num_reads > 0
