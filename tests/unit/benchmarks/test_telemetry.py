"""The arithmetic of the overhead benchmark, and a small run of it against real systems."""

import asyncio
import contextlib
import os
import time

import pytest

from benchmarks.telemetry import (
    _SENT_S,
    RATIOS,
    Measured,
    by_start,
    cpu_s,
    interval_of_median,
    measure,
    order_of,
    overhead_of,
    overheads,
    process,
    require_load,
    running,
    shares,
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


def test_starts_share_the_rounds_and_begin_in_other_orders() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert shares(1, 1) == [1]
    for rounds, starts in ((3, 4), (4, 0)):
        with pytest.raises(SystemExit, match=f"--starts {starts} with --rounds {rounds}: every"):
            shares(rounds, starts)
    orders = [order_of(start) for start in range(6)]
    assert len(set(orders)) == 6
    assert all(set(order) == set(RATIOS) for order in orders)
    assert {order[0] for order in orders[:4]} == set(RATIOS)


def test_a_start_that_differs_is_seen_beside_all_of_them() -> None:
    def start(sampled: float, everything: float) -> Measured:
        rates = {"off": [100.0, 100.0], "sampled": [sampled] * 2, "all": [everything] * 2}
        return Measured(rates, {name: [1.0, 1.0] for name in rates}, num_reads=3)

    parts = [start(99.0, 90.0), start(99.0, 110.0), start(98.0, 100.0)]
    assert by_start(parts) == {
        "overhead": {"sampled": [0.01, 0.01, 0.02], "all": [0.1, -0.1, 0.0]},
        "cpu_overhead": {"sampled": [0.0, 0.0, 0.0], "all": [0.0, 0.0, 0.0]},
    }
    together = Measured.joined(parts)
    assert together.num_reads == 9
    assert together.rates["all"] == [90.0, 90.0, 110.0, 110.0, 100.0, 100.0]
    assert overheads(together)["overhead"]["all"]["median"] == 0.0


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
