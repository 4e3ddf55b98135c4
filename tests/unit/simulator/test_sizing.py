"""Demand of a trace and the cluster that is simulated when none is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.machines import Machines
from simulator.sizing import FILL, decode_groups, default_cluster, demand_of
from simulator.topology import Topology, TopologyError, parse_topology
from simulator.traces.formats import read_trace
from simulator.traces.trace import Trace, TraceRequest

TRACE = read_trace(Path(__file__).parents[2] / "data" / "mooncake_conversation_head.jsonl")


def test_demand_is_work_over_time() -> None:
    machines = Machines(Topology())
    one = Trace(name="two", requests=(TraceRequest(0.0, 8192, 1), TraceRequest(10.0, 8192, 1)))
    found = demand_of(one, machines)
    assert found.engines == pytest.approx(2 * machines.capacity_s(8192, 0) / 10)
    assert found.hit_share == 0.0


def test_prefixes_lower_the_demand() -> None:
    machines = Machines(Topology())
    found = demand_of(TRACE, machines)
    bare = Trace(
        name="bare",
        requests=tuple(
            TraceRequest(r.arrived_s, r.prompt_tokens, r.output_tokens) for r in TRACE.requests
        ),
    )
    assert 0.05 < found.hit_share < 0.6
    assert found.engines < demand_of(bare, machines).engines
    assert found.prefix_tokens > 0


def test_the_default_cluster_is_filled_to_ninety_percent() -> None:
    topology, factor = default_cluster(TRACE, Topology())
    filled = demand_of(TRACE.faster(factor), Machines(topology)).engines
    assert filled / topology.prefill.engines == pytest.approx(FILL)
    assert topology.decode.groups == 1


def test_more_work_needs_more_groups() -> None:
    topology, _ = default_cluster(TRACE.faster(20), Topology())
    assert topology.prefill.groups > 1


def test_decode_grows_with_the_requests() -> None:
    small = Machines(parse_topology({"decode": {"ranks": 8, "max_running": 2}}))
    assert decode_groups(TRACE, small, 1.0) < decode_groups(TRACE, small, 8.0)
    with pytest.raises(TopologyError, match=r"raise decode\.ranks"):
        decode_groups(TRACE, small, 1e5)
