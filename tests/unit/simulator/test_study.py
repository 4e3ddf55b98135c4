"""Policies side by side: same requests, fresh machines, options from profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from balancer.routing.options import RoutingOptions
from simulator.machines import Machines
from simulator.results.slo import Slo
from simulator.study import class_names, compare, make_study, parse_policy, policy_options
from simulator.topology import Topology, parse_topology
from simulator.traces.formats import read_trace
from simulator.traces.trace import Trace

DATA = Path(__file__).parents[2] / "data"
TRACE = read_trace(DATA / "mooncake_conversation_head.jsonl")
HEAD = Trace(name="head", requests=TRACE.requests[:120])


@pytest.mark.medium
def test_policies_are_compared_on_the_same_requests() -> None:
    study = make_study(HEAD, None, load=0.8)
    told: set[str] = set()
    figures, samples = compare(study, ["deepseek", "random"], lambda name, *_: told.add(name))
    assert list(figures) == list(samples) == ["deepseek", "random"] == sorted(told)
    arrivals = [[row.arrived_at for row in samples[name].rows] for name in figures]
    assert arrivals[0] == arrivals[1]
    assert all(found["offered"] == 120 for found in figures.values())
    assert samples["deepseek"].looks[-1].engines
    assert not samples["random"].looks[-1].engines


def test_load_is_a_factor_on_the_trace_or_on_the_default_cluster() -> None:
    given = parse_topology({"decode": {"ranks": 16}})
    assert make_study(HEAD, given, load=2.0).arrival_factor == 2.0
    full = make_study(HEAD, None)
    assert make_study(HEAD, None, load=0.5).arrival_factor == full.arrival_factor / 2
    assert full.trace.rate == pytest.approx(HEAD.rate * full.arrival_factor)


def test_policies_are_told_the_targets_and_the_compute_estimate() -> None:
    study = make_study(HEAD, Topology(), slo=Slo(ttft_s=3.0), seed=5)
    machines = Machines(study.topology)
    options = policy_options(study, machines)
    assert (options.ttft_slo_s, options.salt) == (3.0, "5")
    for tokens, cached in ((2000, 0), (60_000, 0), (60_000, 50_000)):
        told = options.flops.model().seconds(tokens, cached)
        assert told == pytest.approx(machines.capacity_s(tokens - cached, cached), rel=0.25)
    step = options.step_s + 64 * options.step_s_per_request + 64 * 16_384 * options.step_s_per_token
    true = machines.decode_cost.decode_step_s(
        64, 64 * machines.work.read_bytes(16_384), 64 * machines.decode_lockstep
    )
    assert step == pytest.approx(true, rel=0.1)


def test_a_policy_may_come_with_options() -> None:
    assert parse_policy("random") == ("random", {})
    name, changes = parse_policy("deepseek:refuse_late=never:round_s=2.5:max_moves=3")
    assert (name, changes) == ("deepseek", {"refuse_late": "never", "round_s": 2.5, "max_moves": 3})
    study = make_study(HEAD, Topology())
    assert policy_options(study, Machines(Topology()), changes).refuse_late == "never"


@pytest.mark.medium
def test_options_change_what_a_policy_does() -> None:
    study = make_study(HEAD, None, load=1.5)
    figures, _ = compare(study, ["deepseek", "deepseek:refuse_late=never"])
    # Simulated callers state the targets that they are judged by.
    assert figures["deepseek"]["refused_why"]["late"] > 0
    assert figures["deepseek:refuse_late=never"]["rejected"] == 0


def test_options_can_be_changed() -> None:
    study = make_study(HEAD, Topology(), options={"boundaries": (1000, 2048)})
    assert class_names(study) == ("<1000", "1000-2K", ">=2K")
    assert policy_options(study, Machines(Topology())).boundaries == (1000, 2048)
    plain = make_study(HEAD, Topology())
    assert len(class_names(plain)) == RoutingOptions().num_classes
    assert class_names(make_study(HEAD, Topology(), options={"boundaries": ()})) == ("all",)
