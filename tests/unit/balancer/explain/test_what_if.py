"""The smallest change of one input that flips a choice, verified by deciding again."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.explain.decisions import DecisionRecord, decide, re_execute
from balancer.explain.what_if import Change, what_would_change
from balancer.membership.members import MemberView, Role
from balancer.membership.snapshot import snapshot_of
from balancer.routing.policies import make_policy
from tests.fakes.placements import engine, known, request, sink

POLICY = make_policy("deepseek")


def record(views: list[MemberView]) -> DecisionRecord:
    return decide(POLICY, request(), views, rotation=0, now=0.0, knowledge=known())


def flipped(original: DecisionRecord, change: Change, value: float) -> str:
    """Who is chosen for the role of the change when its input has this value."""
    name = {"requests": "outstanding_requests", "tokens": "outstanding_tokens"}.get(
        change.column, "outstanding_quota_s"
    )
    views = [
        dataclasses.replace(view, **{name: value})
        if view.member.member_id == change.member_id
        else view
        for view in original.views
    ]
    again = dataclasses.replace(original, snapshot=snapshot_of(views))
    placement = re_execute(again, POLICY)
    return placement.prefill_id if change.role is Role.PREFILL else placement.decode_id


def test_the_smallest_change_comes_first_and_reads_as_a_sentence() -> None:
    changes = what_would_change(
        record([engine("p0", wait_s=0.2), engine("p1", wait_s=0.5), sink()]), POLICY
    )
    smallest = changes[0]
    assert (smallest.role, smallest.column) == (Role.PREFILL, "quota_s")
    assert smallest.size == pytest.approx(0.3, abs=0.002)
    assert str(changes[0]).startswith("if quota_s of prefill member p")
    assert list(changes) == sorted(changes, key=lambda change: change.size)


def test_without_an_alternative_nothing_flips_or_the_pair_is_lost() -> None:
    lonely = record([engine("p0"), sink(max_running=4, requests=1)])
    changes = what_would_change(lonely, POLICY)
    assert [(c.role, c.column, c.after, c.chosen_id) for c in changes] == [
        (Role.DECODE, "requests", 4.0, "")
    ]
    assert "there would be no pair" in str(changes[0])


def test_a_decision_without_a_pair_has_nothing_to_flip() -> None:
    assert what_would_change(record([engine("p0")]), POLICY) == ()


waits = st.lists(st.floats(0, 3), min_size=2, max_size=4)
loads = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900)), min_size=2, max_size=4)


@pytest.mark.medium
@settings(max_examples=15)
@given(prefills=waits, decodes=loads)
def test_every_answer_flips_and_one_step_less_does_not(
    prefills: list[float], decodes: list[tuple[int, int]]
) -> None:
    sizes = {"max_running": 20, "kv_capacity_tokens": 2000}
    views = [engine(f"p{i}", wait_s=wait) for i, wait in enumerate(prefills)]
    views += [sink(f"d{i}", requests=r, tokens=t, **sizes) for i, (r, t) in enumerate(decodes)]
    original = record(views)
    placement = original.placement
    for change in what_would_change(original, POLICY):
        before = placement.prefill_id if change.role is Role.PREFILL else placement.decode_id
        assert flipped(original, change, change.after) == change.chosen_id != before
        step = 1e-3 if change.column == "quota_s" else 1
        nearer = change.after - step if change.after > change.before else change.after + step
        if abs(nearer - change.before) > step / 2:
            assert flipped(original, change, nearer) == before
