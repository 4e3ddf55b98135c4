"""The policies: the pair they choose, and what must hold whatever the load is."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.explain.decisions import decide
from balancer.membership.members import MemberView, Role
from balancer.routing.base import Placement, PlacementRequest, Verdict
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import POLICIES, make_policy
from tests.fakes.memberships import prefill, view

REQUEST = PlacementRequest(request_id="r", attempt=1, num_tokens=100, max_new_tokens=20)


def placed(name: str, views: tuple[MemberView, ...], rotation: int = 0) -> Placement:
    return decide(make_policy(name), REQUEST, views, rotation=rotation, now=0.0).placement


def chosen(*views: MemberView, rotation: int = 0) -> tuple[str, str]:
    placement = placed("deepseek", views, rotation)
    assert placement.prefill is not None
    assert placement.decode is not None
    return placement.prefill.member.member_id, placement.decode.member.member_id


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"there are: deepseek"):
        make_policy("best")


def test_prefill_with_the_least_seconds_then_tokens() -> None:
    d0 = view("d0")
    quick, slow = {"quota_s": 0.1, "tokens": 20}, {"quota_s": 0.2, "tokens": 10}
    assert chosen(prefill("p0", **slow), prefill("p1", **quick), d0)[0] == "p1"
    assert chosen(prefill("p0", tokens=10), prefill("p1", tokens=9, requests=5), d0)[0] == "p1"


def test_decode_whose_fuller_axis_stays_lowest() -> None:
    p0, sizes = prefill("p0"), {"max_running": 10, "kv_capacity_tokens": 1000}
    # d0 has few requests and much KV; d1 the reverse: 0.62 against 0.6.
    d0 = view("d0", requests=1, tokens=500, **sizes)
    d1 = view("d1", requests=5, tokens=100, **sizes)
    assert chosen(p0, d0, d1)[1] == "d1"


def test_the_pair_shares_a_layout() -> None:
    views = [
        prefill("p0", fingerprint=b"layout-2"),
        prefill("p1", tokens=50),
        view("d1", requests=3),
        view("d2", fingerprint=b"layout-3"),
    ]
    assert chosen(*views) == ("p1", "d1")


def test_without_a_pair_the_reason_names_everyone() -> None:
    placement = placed("deepseek", (prefill("p0"),))
    assert placement.prefill is None
    assert placement.decode is None
    assert "p0: no partner" in placement.reason
    assert placed("deepseek", ()).reason.startswith("no members")


loads = st.tuples(st.integers(0, 8), st.integers(0, 880))


@pytest.mark.medium
@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(POLICIES)),
    prefills=st.lists(loads, min_size=1, max_size=5),
    decodes=st.lists(loads, min_size=1, max_size=5),
    rotation=st.integers(0, 100),
    more=st.integers(1, 500),
    replicas=st.integers(1, 2),
)
def test_more_load_never_attracts_work(
    name: str,
    prefills: list[tuple[int, int]],
    decodes: list[tuple[int, int]],
    rotation: int,
    more: int,
    replicas: int,
) -> None:
    policy = make_policy(name, RoutingOptions(replicas=replicas))
    sizes = {"max_running": 10, "kv_capacity_tokens": 1000}
    views = [prefill(f"p{i}", requests=r, tokens=t) for i, (r, t) in enumerate(prefills)]
    views += [view(f"d{i}", requests=r, tokens=t, **sizes) for i, (r, t) in enumerate(decodes)]
    before = decide(policy, REQUEST, views, rotation=rotation, now=0.0).placement
    assert before == decide(policy, REQUEST, views, rotation=rotation, now=0.0).placement
    if before.verdict is Verdict.HOLD:
        assert name == "ondemand"
        return
    assert before.prefill is not None
    assert before.decode is not None
    winners = {before.prefill.member.member_id, before.decode.member.member_id}
    for index, item in enumerate(views):
        if item.member.member_id in winners:
            continue
        loaded = dataclasses.replace(
            item,
            outstanding_requests=item.outstanding_requests + 1,
            outstanding_tokens=item.outstanding_tokens + more,
            outstanding_quota_s=item.outstanding_quota_s + more / 1000,
        )
        changed = [*views[:index], loaded, *views[index + 1 :]]
        after = decide(policy, REQUEST, changed, rotation=rotation, now=0.0).placement
        assert after.prefill is not None or item.member.role is Role.PREFILL
        sides = {side.member.member_id for side in (after.prefill, after.decode) if side}
        assert item.member.member_id not in sides
