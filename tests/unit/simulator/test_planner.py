"""The planner: finds an edge, names what binds, and says when nothing will do."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from simulator.planner import Plan, Planner, accelerators, busiest, describe
from simulator.results.slo import Slo
from simulator.topology import Topology, TopologyError, parse_topology
from simulator.traces.formats import read_trace
from simulator.traces.trace import Trace, TraceRequest

DATA = Path(__file__).parents[2] / "data"
HEAD = read_trace(DATA / "mooncake_conversation_head.jsonl")
SHORT = Trace(name="short", requests=HEAD.requests[:150])


def plan(trace: Trace, base: Topology | None = None, slo: Slo | None = None) -> Plan:
    return Planner(trace=trace, base=base or Topology(), slo=slo or Slo(), goodput=0.95).search()


@pytest.mark.medium
def test_a_calm_trace_needs_the_smallest_groups() -> None:
    found = plan(SHORT)
    assert found.is_good
    assert (found.best.topology.prefill.ranks, found.best.topology.decode.ranks) == (8, 8)
    assert found.best.accelerators == accelerators(found.best.topology) == 16
    assert "smallest group: no fewer than 8 prefill" in found.binding
    assert sum(found.engines_by_class.values()) == pytest.approx(8, abs=0.1)


@pytest.mark.medium
def test_a_busy_trace_is_bound_by_prefill() -> None:
    found = plan(SHORT.faster(25))
    assert found.is_good
    assert found.best.topology.prefill.engines > 8
    assert found.binding.startswith("prefill compute (prefill.")
    changes = {trial.change.split(" ")[0]: trial for trial in found.violated}
    smaller = next(trial for name, trial in changes.items() if name.startswith("prefill"))
    assert smaller.goodput < 0.95 <= found.best.goodput
    assert smaller.accelerators < found.best.accelerators
    assert smaller.late > 0
    assert found.tried < 40


@pytest.mark.medium
def test_targets_that_nothing_meets() -> None:
    few = Trace(name="few", requests=HEAD.requests[:40])
    found = plan(few, slo=Slo(ttft_s=0.01, ttft_per_token_s=0.0))
    assert not found.is_good
    assert "prefill takes too long" in found.binding


@pytest.mark.medium
def test_a_step_that_no_number_of_ranks_makes_short_enough() -> None:
    few = Trace(name="few", requests=HEAD.requests[:20])
    found = plan(few, slo=Slo(tpot_s=1e-4))
    assert not found.is_good
    assert "a step is longer than the target" in found.binding


def test_a_model_that_fits_no_group() -> None:
    base = parse_topology({"hardware_changes": {"memory_bytes": 10_000_000_000}})
    with pytest.raises(
        TopologyError, match=r"no decode group can be built: h800: weights of .* do not fit"
    ):
        plan(SHORT, base)


def test_the_busiest_stretch_is_the_densest() -> None:
    calm = [TraceRequest(10.0 * n, 100, 1) for n in range(10)]
    rush = [TraceRequest(200.0 + 0.1 * n, 1000, 1) for n in range(5)]
    trace = Trace(name="t", requests=(*calm, *rush, TraceRequest(300.0, 100, 1)))
    found = busiest(trace, 5)
    assert [request.prompt_tokens for request in found.requests] == [1000] * 5
    assert found.requests[0].arrived_s == 0.0
    assert busiest(trace, 100) is trace


def test_a_cluster_in_one_phrase() -> None:
    topology = dataclasses.replace(Topology(), hardware_changes={"nic_gbits_per_s": 100.0})
    assert describe(topology) == ("prefill 1 x 8, decode 1 x 64, store 4 TB, 100 Gbit/s a rank")
