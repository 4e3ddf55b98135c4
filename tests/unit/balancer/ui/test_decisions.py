"""A line of a decision says what its record says."""

from __future__ import annotations

from balancer.explain.decisions import decide
from balancer.explain.explanation import explain
from balancer.membership.members import ExclusionCause
from balancer.routing.policies import make_policy
from balancer.ui.decisions import decision_lines
from tests.fakes.memberships import prefill, view
from tests.fakes.placements import request


def test_winner_margin_and_candidates_are_those_of_the_explanation() -> None:
    policy = make_policy("deepseek")
    views = (
        prefill("p0", quota_s=2.0, requests=1),
        prefill("p1"),
        view("d0", requests=3, tokens=30),
        view("d1"),
        view("d2", exclusion=ExclusionCause.STALE),
    )
    record = decide(policy, request(100, request_id="q"), views, rotation=0, now=5.0)
    explained = explain(record, policy)
    [line] = decision_lines([record], 6.5)
    assert (line["request_id"], line["attempt"], line["age_s"]) == ("q", 1, 1.5)
    assert (line["verdict"], line["num_tokens"]) == ("place", 100)
    for name, side in (("prefill", explained.prefill), ("decode", explained.decode)):
        told = line[name]
        assert isinstance(told, dict)
        assert told["chosen"] == side.chosen_id
        assert told["candidates"] == len(side.considered)
        assert told["excluded"] == len(side.excluded)
        assert told["ties"] == side.ties
        assert told["margin"] == [side.margin[0], round(side.margin[1], 6)]


def test_no_pair_is_told_as_well() -> None:
    record = decide(make_policy("deepseek"), request(), (view("d0"),), rotation=0, now=0.0)
    [line] = decision_lines([record], 0.0)
    assert line["verdict"] == "no pair"
    assert line["prefill"] == {
        "chosen": "",
        "candidates": 0,
        "excluded": 0,
        "ties": 0,
        "margin": ["", 0.0],
    }
