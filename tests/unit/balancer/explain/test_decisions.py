"""Records: complete enough to decide again, and bounded."""

from __future__ import annotations

import dataclasses

import pytest

from balancer.explain.decisions import DecisionRing, decide, re_execute
from balancer.routing.base import PlacementRequest
from balancer.routing.policies import make_policy
from tests.fakes.memberships import prefill, view

POLICY = make_policy("least_tokens")


def request(request_id: str = "r") -> PlacementRequest:
    return PlacementRequest(request_id=request_id, attempt=1, num_tokens=5, max_new_tokens=5)


def test_a_record_alone_gives_the_same_decision() -> None:
    views = (prefill("p0"), prefill("p1"), view("d0", requests=1), view("d1"), view("d2"))
    for rotation in range(6):
        record = decide(POLICY, request(), views, rotation=rotation, now=3.0)
        assert [item.member.member_id for item in record.views] == ["d0", "d1", "d2", "p0", "p1"]
        assert re_execute(record, POLICY) == record.placement


def test_another_version_does_not_pretend_to_explain() -> None:
    record = decide(POLICY, request(), (), rotation=0, now=0.0)
    older = dataclasses.replace(record, policy_version=9)
    with pytest.raises(ValueError, match="version 9, not by least_tokens version 1"):
        re_execute(older, POLICY)
    with pytest.raises(ValueError, match="made by least_tokens version 1, not by random"):
        re_execute(record, make_policy("random"))


def test_the_ring_forgets_the_oldest_request() -> None:
    ring = DecisionRing(2)
    for name in ("a", "b", "a", "c"):
        ring.append(decide(POLICY, request(name), (), rotation=0, now=0.0))
    assert ring.explain("b") == ()
    assert len(ring.explain("a")) == 2
    assert len(ring) == 2
    with pytest.raises(ValueError, match="max_requests 0"):
        DecisionRing(0)


def test_a_request_that_asks_again_and_again_keeps_its_first_and_latest() -> None:
    ring = DecisionRing(1, max_per_request=4)
    for rotation in range(10):
        ring.append(decide(POLICY, request(), (), rotation=rotation, now=0.0))
    assert [record.rotation for record in ring.explain("r")] == [0, 1, 8, 9]
    with pytest.raises(ValueError, match="max_per_request 0"):
        DecisionRing(1, max_per_request=0)


def test_records_cannot_be_changed() -> None:
    record = decide(POLICY, request(), (), rotation=0, now=0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.rotation = 3  # type: ignore[misc]


def test_recent_is_the_last_word_on_each_request_newest_first() -> None:
    ring = DecisionRing(3)
    for rotation, name in enumerate("abcda"):
        ring.append(decide(POLICY, request(name), (), rotation=rotation, now=0.0))
    assert [(item.request.request_id, item.rotation) for item in ring.recent(9)] == [
        ("a", 4),
        ("d", 3),
        ("c", 2),
    ]
    assert len(ring.recent(2)) == 2
