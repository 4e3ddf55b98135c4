"""Decode placement: two axes, slots, reserve, look-ahead, and several balancers."""

from __future__ import annotations

from collections import Counter

import pytest

from balancer.membership.members import ExclusionCause, MemberView
from balancer.routing.base import Placement, Verdict
from balancer.routing.options import RoutingOptions
from tests.fakes.placements import engine, known, place, request, sink


def decoded(*views: MemberView, rotation: int = 0, name: str = "r", **options: object) -> Placement:
    return place(
        "deepseek",
        [engine("p0"), *views],
        request(request_id=name),
        options=RoutingOptions(**options),  # type: ignore[arg-type]
        knowledge=known(),
        rotation=rotation,
    )


def test_the_member_whose_fuller_axis_stays_lowest() -> None:
    sizes = {"max_running": 10, "kv_capacity_tokens": 1000}
    # 100 of prompt and 10 of output come on top: 0.2 and 0.61 against 0.6 and 0.21.
    by_kv = sink("d0", requests=1, tokens=500, **sizes)
    by_requests = sink("d1", requests=5, tokens=100, **sizes)
    placement = decoded(by_kv, by_requests)
    assert placement.decode_id == "d1"
    [first, second] = [item.score for item in placement.decode_side.candidates()]
    assert first == pytest.approx((0.61, 0.81))
    assert second == pytest.approx((0.6, 0.81))


def test_ties_go_to_the_lower_sum_then_by_turns() -> None:
    sizes = {"max_running": 10, "kv_capacity_tokens": 10_000}
    d0, d1 = sink("d0", requests=4, tokens=900, **sizes), sink("d1", requests=4, **sizes)
    assert decoded(d0, d1).decode_id == "d1"
    same = [sink("d0"), sink("d1"), sink("d2")]
    assert [decoded(*same, rotation=i).decode_id for i in range(4)] == ["d0", "d1", "d2", "d0"]


def test_without_a_slot_a_member_is_no_candidate_but_for_the_look_ahead() -> None:
    full = sink("d0", max_running=4, requests=4)
    placement = decoded(full)
    assert placement.verdict is Verdict.NO_PAIR
    causes = {item.member_id: item.cause for item in placement.exclusions}
    assert causes["d0"] is ExclusionCause.FULL
    assert decoded(full, look_ahead=1).decode_id == "d0"
    assert decoded(sink("d0", max_running=4, requests=5), look_ahead=1).decode_id == ""


def test_the_prompt_must_leave_the_reserve_free() -> None:
    # 1000 fit: 850 + 100 leave 50.
    member = sink("d0", tokens=850, kv_capacity_tokens=1000)
    assert decoded(member, reserve_share=0.05).decode_id == "d0"
    assert decoded(member, reserve_share=0.051).decode_id == ""


def test_members_that_do_not_say_what_fits_share_evenly() -> None:
    members = [sink("d0", requests=2), sink("d1", requests=1)]
    assert decoded(*members).decode_id == "d1"


@pytest.mark.medium
def test_several_balancers_do_not_herd() -> None:
    """All see the same stale view; alone, all would take the one best member."""
    members = [sink(f"d{i}", requests=i, max_running=100) for i in range(16)]
    for replicas, most in ((1, 1), (2, 4)):
        chosen = Counter(
            decoded(*members, name=f"r{i}", replicas=replicas, salt=f"b{i % 2}").decode_id
            for i in range(200)
        )
        assert len(chosen) <= most
        if replicas > 1:
            # Of four members two are drawn, the better one wins: 1/2, 1/3, 1/6, 0.
            assert set(chosen) == {"d0", "d1", "d2"}
            assert chosen["d0"] < 140
            assert chosen["d0"] > chosen["d1"] > chosen["d2"]
