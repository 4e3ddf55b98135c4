"""What a record says: complete, plain, and checked by deciding again."""

from __future__ import annotations

import dataclasses

import pytest

from balancer.explain.decisions import DecisionRecord, decide
from balancer.explain.explanation import explain, trace_attributes
from balancer.membership.members import ExclusionCause, Role
from balancer.routing.policies import make_policy
from balancer.routing.shares import Shares
from tests.fakes.placements import engine, known, request, sink

POLICY = make_policy("deepseek")


def record() -> DecisionRecord:
    views = [
        engine("p0", wait_s=0.5, tokens=40),
        engine("p1", wait_s=0.25),
        engine("p2", exclusion=ExclusionCause.DRAINING),
        engine("p3", wait_s=0.1),
        sink("d0", requests=2, max_running=8),
        sink("d1", requests=1, max_running=8),
    ]
    shares = Shares(class_of={"p0": 0, "p1": 0, "p2": 0, "p3": 1})
    return decide(POLICY, request(), views, rotation=3, now=9.0, knowledge=known(shares))


def test_everything_that_decided_is_told() -> None:
    told = explain(record(), POLICY)
    assert (told.verdict, told.policy, told.policy_version, told.rotation) == (
        "place",
        "deepseek",
        2,
        3,
    )
    assert (told.num_tokens, told.length_class, told.quota_coefficients) == (100, 0, (1e-4, 0, 0))
    assert told.is_reproduced
    assert told.changes == ()
    prefill = told.prefill
    assert [(m.member_id, m.is_chosen, m.length_class) for m in prefill.considered] == [
        ("p1", True, 0),
        ("p0", False, 0),
    ]
    assert prefill.considered[1].score == (("wait_s", 0.5), ("tokens", 40.0))
    assert prefill.considered[1].outstanding_quota_s == 0.5
    assert prefill.considered[1].age_s == pytest.approx(0.1)
    assert (prefill.runner_up_id, prefill.margin, prefill.ties) == ("p0", ("wait_s", 0.25), 1)
    assert {item.member_id: item.cause for item in prefill.excluded} == {
        "p2": ExclusionCause.DRAINING,
        "p3": ExclusionCause.OTHER_CLASS,
    }
    assert (told.decode.chosen_id, told.decode.runner_up_id) == ("d1", "d0")
    assert told.decode.considered[0].length_class is None


def test_on_request_it_says_what_would_have_changed_the_choice() -> None:
    changes = explain(record(), POLICY, what_if=True).changes
    assert changes[0].role in Role
    assert any(change.member_id == "p0" and change.chosen_id == "p0" for change in changes)


def test_a_record_that_no_longer_gives_the_same_answer_says_so() -> None:
    original = record()
    other = decide(POLICY, request(20_000), original.views, rotation=3, now=9.0, knowledge=known())
    tampered = dataclasses.replace(original, placement=other.placement)
    assert not explain(tampered, POLICY).is_reproduced
    with pytest.raises(ValueError, match="made by deepseek version 2, not by random"):
        explain(original, make_policy("random"))


def test_without_a_pair_there_is_no_winner() -> None:
    told = explain(decide(POLICY, request(), [engine("p0")], rotation=0, now=0.0), POLICY)
    assert told.verdict == "no pair"
    assert (told.prefill.chosen_id, told.decode.considered) == ("", ())
    assert told.prefill.excluded[0].cause is ExclusionCause.NO_PARTNER


def test_a_span_gets_few_plain_values() -> None:
    attributes = trace_attributes(record().placement, "deepseek")
    assert attributes["placement.prefill"] == "p1"
    assert attributes["placement.prefill_candidates"] == 2
    assert attributes["placement.prefill_margin"] == 0.25
    assert all(isinstance(value, str | int | float) for value in attributes.values())
