"""Filters and the picker that all policies share."""

from __future__ import annotations

from balancer.membership import ExclusionCause, Role
from balancer.routing.base import Exclusion, PlacementRequest, pick, screen
from tests.fakes.memberships import prefill, view


def request(**fields: object) -> PlacementRequest:
    values = {"request_id": "r", "attempt": 1, "num_tokens": 100, "max_new_tokens": 20}
    return PlacementRequest(**{**values, **fields})  # type: ignore[arg-type]


def causes(exclusions: list[Exclusion]) -> dict[str, ExclusionCause]:
    return {item.member_id: item.cause for item in exclusions}


def test_every_exclusion_has_its_cause() -> None:
    views = [
        prefill("ok"),
        prefill("avoided"),
        prefill("short", max_model_len=119),
        view("ok-d"),
        view("drains", exclusion=ExclusionCause.DRAINING),
        view("full"),
        view("small", kv_capacity_tokens=119),
        view("exact", kv_capacity_tokens=120, max_model_len=120),
        view("other", fingerprint=b"layout-2"),
    ]
    kept, exclusions = screen(
        request(avoid=frozenset({"avoided"}), full=frozenset({"full"})), views
    )
    assert [item.member.member_id for item in kept] == ["ok", "ok-d", "exact"]
    assert causes(exclusions) == {
        "avoided": ExclusionCause.FAILED_BEFORE,
        "short": ExclusionCause.CONTEXT,
        "drains": ExclusionCause.DRAINING,
        "full": ExclusionCause.FULL,
        "small": ExclusionCause.CAPACITY,
        "other": ExclusionCause.NO_PARTNER,
    }


def test_one_side_alone_is_no_pair() -> None:
    kept, exclusions = screen(request(), [prefill("p0")])
    assert kept == []
    assert causes(exclusions) == {"p0": ExclusionCause.NO_PARTNER}


def test_ties_rotate_and_better_scores_win() -> None:
    views = [((1.0,), view("a")), ((1.0,), view("b")), ((2.0,), view("c"))]
    picked = [pick(views, rotation)[0].member.member_id for rotation in range(4)]
    assert picked == ["a", "b", "a", "b"]
    assert pick(views, 0)[1] == 2


def test_an_exclusion_reads_as_one_phrase() -> None:
    item = Exclusion(
        member_id="d0", role=Role.DECODE, cause=ExclusionCause.STALE, detail="no heartbeat"
    )
    assert str(item) == "d0: stale, no heartbeat"
