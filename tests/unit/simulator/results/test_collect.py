"""What is read off the machines at the end of a run."""

from __future__ import annotations

import pytest

from simulator.machines import Machines
from simulator.results.collect import collect
from simulator.results.samples import RequestRow, Samples
from simulator.topology import parse_topology


def test_shares_are_of_the_time_until_the_last_first_token() -> None:
    machines = Machines(parse_topology({"decode": {"ranks": 16}}))
    machines.decode_groups[0].join(1, 0, context=10, tokens=4, now=0.0)
    end = machines.decode_groups[0].next_end()
    assert end is not None
    machines.decode_groups[0].pop_ended(end)
    machines.store_out.send(1e9, 0.0)
    row = RequestRow(0.0, 10, 5, 0, first_at=2.0, finished_at=2.0 + end)
    samples = Samples(rows=[row])
    collect(samples, machines, capacity_s=4.0)
    assert samples.ended_at == 2.0 + end
    assert samples.prefill_fill == 4.0 / (8 * 2.0)
    assert samples.prefill_busy == 0.0
    assert samples.decode_busy == pytest.approx(end / (2.0 + end))
    assert sum(tokens for _, tokens in samples.gaps) == 4
    assert 0 < samples.store_busy < 1


def test_a_run_without_any_answer() -> None:
    samples = Samples(rows=[RequestRow(5.0, 10, 5, 0, refused="no pair")])
    collect(samples, Machines(parse_topology({"decode": {"ranks": 16}})), 0.0)
    assert (samples.ended_at, samples.prefill_fill, samples.decode_busy) == (5.0, 0.0, 0.0)
