"""The order in which rules speak, the picker, and what happens without a candidate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.membership.members import ExclusionCause
from balancer.membership.snapshot import snapshot_of
from balancer.routing.base import Verdict
from balancer.routing.composition import make_case, pick
from balancer.routing.options import RoutingOptions
from tests.fakes.placements import engine, known, place, request, sink


def test_ties_rotate_and_better_scores_win() -> None:
    columns = [np.array([1.0, 1.0, 2.0]), np.array([5, 5, 0])]
    assert [pick(columns, 3, rotation)[0] for rotation in range(4)] == [0, 1, 0, 1]
    assert pick(columns, 3, 0)[1] == 2
    assert pick([np.array([1, 1]), np.array([3, 2])], 2, 0) == (1, 1)
    assert pick([], 0, 5) == (-1, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), st.integers(0, 9))
def test_the_picker_agrees_with_comparing_tuples(
    scores: list[tuple[int, int]], rotation: int
) -> None:
    columns = [np.array([score[i] for score in scores]) for i in range(2)]
    ties = [index for index, score in enumerate(scores) if score == min(scores)]
    assert pick(columns, len(scores), rotation) == (ties[rotation % len(ties)], len(ties))


def test_the_pair_shares_a_layout() -> None:
    views = [
        engine("p0", fingerprint=b"layout-2"),
        engine("p1", wait_s=50.0),
        sink("d1", requests=3),
        sink("d2", fingerprint=b"layout-3"),
    ]
    placement = place("deepseek", views)
    assert (placement.prefill_id, placement.decode_id) == ("p1", "d1")


def test_decode_follows_the_layout_of_prefill() -> None:
    views = [
        engine("p0", fingerprint=b"layout-2", wait_s=9.0),
        engine("p1"),
        sink("d1", requests=3),
        sink("d2", fingerprint=b"layout-2"),
    ]
    placement = place("deepseek", views)
    assert (placement.prefill_id, placement.decode_id) == ("p1", "d1")
    causes = {item.member_id: item.cause for item in placement.exclusions}
    assert causes == {"d2": ExclusionCause.OTHER_LAYOUT}


def test_a_layout_whose_decode_members_are_full_is_no_choice() -> None:
    views = [
        engine("p1"),
        engine("p2", fingerprint=b"layout-2", wait_s=5.0),
        sink("d1", max_running=1, requests=1),
        sink("d2", fingerprint=b"layout-2"),
    ]
    assert place("deepseek", views).prefill_id == "p2"


def test_what_is_busy_is_asked_again_when_the_first_is_free() -> None:
    placement = place("ondemand", [engine("p0", wait_s=3.0), engine("p1", wait_s=1.5), sink()])
    assert placement.verdict is Verdict.HOLD
    assert placement.retry_after_s == 1.5
    assert placement.prefill is None
    assert "busy" in placement.reason


def test_members_that_are_not_there_are_no_reason_to_hold() -> None:
    views = [engine("p0", exclusion=ExclusionCause.STALE), sink()]
    assert place("ondemand", views).verdict is Verdict.NO_PAIR


def test_the_price_counts_what_the_chosen_member_caches_itself() -> None:
    wanted = request(1000, cached_tokens=100, local_cached={"p1": 600, "gone": 900})
    views = [engine("p0", wait_s=9.0), engine("p1"), sink()]
    assert place("deepseek", views, wanted).quota_s == pytest.approx(400 * 1e-4)
    assert place("deepseek", views[:1] + views[2:], wanted).quota_s == pytest.approx(900 * 1e-4)


def test_a_case_derives_what_rules_need() -> None:
    snapshot = snapshot_of([engine("p0"), sink()], taken_at=4.0)
    wanted = request(20_000, cached_tokens=12_000, max_new_tokens=3)
    case = make_case(wanted, snapshot, known(), RoutingOptions(), 7)
    assert (case.length_class, case.output_tokens, case.now) == (1, 3, 4.0)
    assert case.quota_s == pytest.approx(0.8)
    cached = case.cached_tokens(snapshot.prefill, np.array([0]))
    assert case.prefill_s(cached)[0] == pytest.approx(case.quota_s)
