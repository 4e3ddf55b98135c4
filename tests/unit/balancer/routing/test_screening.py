"""Filters that all policies share."""

from __future__ import annotations

import numpy as np

from balancer.membership.members import ExclusionCause, MemberView, Role
from balancer.membership.snapshot import CAUSES, snapshot_of
from balancer.routing.base import PlacementRequest
from balancer.routing.screening import pair, screen
from tests.fakes.memberships import prefill, view


def request(**fields: object) -> PlacementRequest:
    values = {"request_id": "r", "attempt": 1, "num_tokens": 100, "max_new_tokens": 20}
    return PlacementRequest(**{**values, **fields})  # type: ignore[arg-type]


def screened(
    wanted: PlacementRequest, views: list[MemberView]
) -> tuple[set[str], dict[str, ExclusionCause]]:
    """Ids of the candidates, and causes of the others."""
    snapshot = snapshot_of(views)
    causes = screen(wanted, snapshot)
    pair(snapshot, causes)
    kept, excluded = set(), {}
    for role in Role:
        for member_id, code in zip(snapshot.of(role).fixed.ids, causes[role], strict=True):
            if code:
                excluded[member_id] = CAUSES[code - 1]
            else:
                kept.add(member_id)
    return kept, excluded


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
    wanted = request(avoid=frozenset({"avoided", "nobody"}), full=frozenset({"full", "drains"}))
    kept, excluded = screened(wanted, views)
    assert kept == {"ok", "ok-d", "exact"}
    assert excluded == {
        "avoided": ExclusionCause.FAILED_BEFORE,
        "short": ExclusionCause.CONTEXT,
        "drains": ExclusionCause.DRAINING,
        "full": ExclusionCause.FULL,
        "small": ExclusionCause.CAPACITY,
        "other": ExclusionCause.NO_PARTNER,
    }


def test_one_side_alone_is_no_pair() -> None:
    assert screened(request(), [prefill("p0")]) == (set(), {"p0": ExclusionCause.NO_PARTNER})
    assert screened(request(), []) == (set(), {})


def test_a_layout_without_candidates_on_one_side_is_out_on_the_other() -> None:
    views = [
        prefill("p1"),
        prefill("p2", fingerprint=b"layout-2"),
        view("d1"),
        view("d2", fingerprint=b"layout-2", exclusion=ExclusionCause.STALE),
    ]
    kept, excluded = screened(request(), views)
    assert kept == {"p1", "d1"}
    assert excluded == {"p2": ExclusionCause.NO_PARTNER, "d2": ExclusionCause.STALE}


def test_the_snapshot_is_not_written_to() -> None:
    snapshot = snapshot_of([prefill("p0"), view("d0")])
    screen(request(avoid=frozenset({"p0"})), snapshot)
    assert np.array_equal(snapshot.prefill.cause, [0])
