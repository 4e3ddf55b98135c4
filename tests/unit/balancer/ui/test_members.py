"""Members as lists: sums over all of them, and a bound on what is listed."""

from __future__ import annotations

import json

from balancer.membership.members import ExclusionCause, MemberView
from balancer.membership.snapshot import snapshot_of
from balancer.routing.shares import Shares
from balancer.ui.members import MAX_LISTED, STATES, decode_members, prefill_members
from tests.fakes.memberships import prefill, view


def test_prefill_members_have_their_class_and_their_work() -> None:
    views = [
        prefill("p0", requests=2, tokens=50, quota_s=1.25),
        prefill("p1"),
        prefill("p2", exclusion=ExclusionCause.DRAINING),
    ]
    own = Shares(class_of={"p0": 1, "p1": 0}, moving=frozenset({"p1"}))
    told = prefill_members(snapshot_of(views, 7.0).prefill, own, 7.0)
    assert (told["total"], told["ready"], told["left_off"]) == (3, 2, 0)
    assert (told["requests"], told["tokens"], told["quota_s"]) == (2, 50, 1.25)
    members = told["members"]
    assert members == {
        "id": ["p0", "p1", "p2"],
        "requests": [2, 0, 0],
        "tokens": [50, 0, 0],
        "state": [0, 0, STATES.index("draining")],
        "age_s": [0.1, 0.1, 0.1],
        "quota_s": [1.25, 0.0, 0.0],
        "class": [1, 0, -1],
        "moving": [0, 1, 0],
    }


def test_policies_without_classes_have_engines_for_all() -> None:
    told = prefill_members(snapshot_of([prefill("p0")]).prefill, "something else", 0.0)
    assert told["members"]["class"] == [-1]  # type: ignore[index]


def test_decode_ranks_have_room_and_imbalance() -> None:
    views = [
        view("d0", requests=3, tokens=300, max_running=4, kv_capacity_tokens=1000, rank=0),
        view("d1", requests=1, tokens=100, max_running=4, kv_capacity_tokens=1000, rank=1),
    ]
    told = decode_members(snapshot_of(views).decode, 0.0)
    assert (told["slots"], told["kv_capacity"], told["requests"]) == (8, 2000, 4)
    assert told["imbalance"] == {"requests": 1.5, "kv_tokens": 1.5}
    members = told["members"]
    assert isinstance(members, dict)
    assert members["rank"] == [0, 1]
    assert members["slots"] == [4, 4]
    assert members["kv_capacity"] == [1000, 1000]


def test_no_member_is_a_state_too() -> None:
    told = decode_members(snapshot_of([]).decode, 0.0)
    assert (told["total"], told["ready"]) == (0, 0)
    assert json.loads(json.dumps(told))["members"]["id"] == []


def test_a_large_cluster_stays_small() -> None:
    def many(count: int) -> list[MemberView]:
        return [view(f"d{i:05}", requests=1, tokens=1, max_running=8) for i in range(count)]

    told = decode_members(snapshot_of(many(1024)).decode, 0.0)
    assert len(json.dumps(told, separators=(",", ":"))) < 50_000
    told = decode_members(snapshot_of(many(MAX_LISTED + 3)).decode, 0.0)
    assert (told["total"], told["requests"], told["left_off"]) == (MAX_LISTED + 3,) * 2 + (3,)
    assert {len(column) for column in told["members"].values()} == {MAX_LISTED}  # type: ignore[attr-defined]
