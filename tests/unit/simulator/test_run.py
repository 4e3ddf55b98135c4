"""Whole runs over heads of real traces: everything offered comes to an end, and adds up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from balancer.routing.options import RoutingOptions
from simulator.machines import Machines
from simulator.results.samples import Samples
from simulator.run import Simulation, SimulationError
from simulator.topology import parse_topology
from simulator.traces.formats import read_trace
from simulator.traces.trace import Trace, TraceRequest

DATA = Path(__file__).parents[2] / "data"
CONVERSATION = read_trace(DATA / "mooncake_conversation_head.jsonl")
OPTIONS = RoutingOptions()
SMALL: dict[str, Any] = {"decode": {"ranks": 16}}

pytestmark = pytest.mark.medium


def simulate(
    trace: Trace, raw: dict[str, Any] | None = None, policy: str = "least_tokens"
) -> Samples:
    return Simulation(
        trace=trace,
        machines=Machines(parse_topology(raw or SMALL)),
        policy=policy,
        options=OPTIONS,
    ).run()


def first(count: int, trace: Trace = CONVERSATION) -> Trace:
    return Trace(name="head", requests=trace.requests[:count])


def test_everything_offered_ends_in_order() -> None:
    samples = simulate(CONVERSATION.faster(4))
    assert len(samples.rows) == 400
    for row in samples.rows:
        assert not row.refused
        assert row.arrived_at <= row.placed_at <= row.began_at < row.first_at
        if row.output_tokens > 1:
            assert row.first_at < row.second_at <= row.finished_at
    assert samples.decisions == 400
    assert sum(tokens for _, tokens in samples.gaps) == sum(
        row.output_tokens - 1 for row in samples.rows
    )


def test_the_same_run_twice_is_the_same() -> None:
    once, again = (simulate(first(100), policy="random") for _ in range(2))
    assert once.rows == again.rows


def test_a_lone_request_takes_what_the_cost_model_says() -> None:
    trace = Trace(name="one", requests=(TraceRequest(0.0, 4000, 3),))
    samples = simulate(trace)
    machines = Machines(parse_topology(SMALL))
    [row] = samples.rows
    alone = machines.prefill_cost
    from simulator.hardware.cost import Chunk

    step = alone.prefill_step_s([[Chunk(q=4000, k=4000, prompt=4000)]])
    assert row.ttft_s == pytest.approx(step + 2 * 0.0005)
    gap = machines.decode_cost.decode_step_s(1, machines.work.read_bytes(4000), 1)
    assert row.tpot_s == pytest.approx(gap, rel=0.2)  # and the hand-off of 6 MB, once


def test_prefixes_are_found_and_save_work() -> None:
    with_ids = simulate(CONVERSATION)
    bare = Trace(
        name="bare",
        requests=tuple(
            TraceRequest(r.arrived_s, r.prompt_tokens, r.output_tokens)
            for r in CONVERSATION.requests
        ),
    )
    without = simulate(bare)
    assert with_ids.traffic.cached_tokens > 0
    assert with_ids.traffic.prefix_bytes > 0
    assert without.traffic.cached_tokens == 0
    assert with_ids.prefill_fill < without.prefill_fill


def test_a_store_without_room_finds_nothing() -> None:
    samples = simulate(first(150), SMALL | {"store": {"capacity_bytes": 0}})
    assert samples.traffic.cached_tokens == 0
    assert samples.traffic.evicted_blocks > 0


@pytest.mark.parametrize("cache", ["local", "pooled"])
def test_caches_of_engines(cache: str) -> None:
    raw = SMALL | {"prefill": {"cache_bytes": 1e12}, "store": {"cache": cache}}
    samples = simulate(first(200), raw)
    shared = simulate(first(200))
    assert 0 < samples.traffic.cached_tokens <= shared.traffic.cached_tokens
    if cache == "local":
        assert samples.traffic.prefix_bytes == 0
    else:
        assert samples.traffic.cached_tokens == pytest.approx(shared.traffic.cached_tokens, rel=0.1)


def test_a_slow_network_delays_the_second_token() -> None:
    slow = simulate(first(60), SMALL | {"hardware_changes": {"nic_gbits_per_s": 0.1}})
    fast = simulate(first(60))
    assert slow.rows[0].second_at - slow.rows[0].first_at > 10 * (
        fast.rows[0].second_at - fast.rows[0].first_at
    )


def test_requests_wait_for_slots_and_all_get_one() -> None:
    raw = {"decode": {"ranks": 8, "max_running": 1}, "front": {"max_running": 1000}}
    samples = simulate(CONVERSATION.faster(8), raw)
    assert samples.held > 0
    assert all(row.refused or not math.isnan(row.finished_at) for row in samples.rows)


def test_admission_bounds_what_runs_and_what_waits() -> None:
    samples = simulate(
        CONVERSATION.faster(8), SMALL | {"front": {"max_running": 2, "max_waiting": 20}}
    )
    refused = [row for row in samples.rows if row.refused]
    assert {row.refused for row in refused} == {"refused"}
    assert 0 < len(refused) < len(samples.rows)
    assert samples.decisions == len(samples.rows) - len(refused)


def test_callers_without_patience_are_refused_at_once_or_in_the_queue() -> None:
    raw = SMALL | {"front": {"max_running": 2, "first_token_s": 3.0}}
    samples = simulate(CONVERSATION.faster(8), raw)
    late = [row for row in samples.rows if row.refused == "too late"]
    assert late
    assert all(row.ttft_s < 10.0 for row in samples.rows if not row.refused)


def test_what_no_engine_can_take_is_refused() -> None:
    trace = Trace(name="long", requests=(TraceRequest(0.0, 5000, 3),))
    samples = simulate(trace, SMALL | {"front": {"max_model_len": 6000}})
    assert samples.rows[0].refused == "no pair"
    assert math.isnan(samples.rows[0].ttft_s)


def test_more_load_is_not_faster() -> None:
    calm, busy = (simulate(CONVERSATION.faster(factor)) for factor in (1, 12))
    mean = [sum(row.ttft_s for row in s.rows) / len(s.rows) for s in (calm, busy)]
    assert mean[0] < mean[1]
    assert calm.prefill_fill < busy.prefill_fill <= 1.0


def test_a_run_that_would_never_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.run._DRAIN_S", 0.001)
    with pytest.raises(SimulationError, match="never end"):
        simulate(first(20))
