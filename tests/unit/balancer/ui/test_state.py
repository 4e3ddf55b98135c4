"""The object that the page draws: what it says, and what it never says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from balancer.explain.decisions import decide
from balancer.journey.recent import Ended
from balancer.journey.request import Timing
from balancer.journey.tiers import TierLoad
from balancer.membership.members import ExclusionCause, MemberView
from balancer.membership.snapshot import snapshot_of
from balancer.routing.base import PlacementRequest
from balancer.routing.policies import make_policy
from balancer.routing.shares import Shares
from balancer.ui.history import Point
from balancer.ui.state import Facts, StoreFacts, finite, state_of
from tests.fakes.memberships import prefill, view
from tests.fakes.placements import known

NOW = 100.0
POLICY = make_policy("deepseek")
MEMBERS = (prefill("p0"), view("d0"), view("d1"))


def ended(request_id: str = "r", **timing: int) -> Ended:
    return Ended(
        request_id=request_id,
        ended_at=NOW - 1,
        outcome="length",
        reason="",
        prompt_tokens=100,
        cached_tokens=25,
        generated_tokens=8,
        attempts=1,
        timing=Timing(**{"first_token_us": 2000, "fetched_bytes": 80, **timing}),
    )


def facts(members: tuple[MemberView, ...] = MEMBERS, **changes: Any) -> Facts:
    plain = Facts(
        version="1.2",
        model="m",
        policy="deepseek",
        uptime_s=9.0,
        is_ready=True,
        is_draining=False,
        running=2,
        waiting=1,
        snapshot=snapshot_of(members, NOW),
        knowledge=known(Shares(class_of={"p0": 0})),
        boundaries=(1024,),
        tiers=(
            TierLoad(name="lt1k", quota_tokens=30, backlog_tokens=7),
            TierLoad(name="ge1k", quota_tokens=10, backlog_tokens=0),
        ),
        points=(Point(at=NOW - 10, shares=(1.0, 0.0), num_ended=0, num_tokens=0),),
        records=(),
        ended=(),
        num_ended=20,
        num_tokens=400,
        store=StoreFacts(is_reachable=True),
    )
    return replace(plain, **changes)


def state(*arguments: Any, **changes: Any) -> Any:
    """As a browser gets it."""
    told = finite(state_of(facts(*arguments, **changes), {}))
    return json.loads(json.dumps(told, allow_nan=False))


def test_a_healthy_balancer() -> None:
    told = state()
    assert told["about"]["model"] == "m"
    assert told["about"]["layout"] == b"layout-1".hex()
    assert told["health"] == {"ready": True, "draining": False, "why": ""}
    assert told["requests"] == {
        "running": 2,
        "waiting": 1,
        "ended": 20,
        "per_s": 2.0,
        "tokens_per_s": 40.0,
        "first_token_p50_s": None,
    }
    assert told["classes"] == [
        {
            "name": "lt1k",
            "from": 0,
            "to": 1024,
            "engines": 1,
            "quota_tokens": 30,
            "backlog_tokens": 7,
            "share": 0.75,
        },
        {
            "name": "ge1k",
            "from": 1024,
            "to": None,
            "engines": 0,
            "quota_tokens": 10,
            "backlog_tokens": 0,
            "share": 0.25,
        },
    ]
    assert told["history"] == {"age_s": [10.0], "shares": [[1.0], [0.0]]}
    assert told["failures"] == []


@pytest.mark.parametrize(
    ("members", "changes", "why"),
    [
        ((), {}, "no prefill member has announced itself"),
        ((prefill("p0"),), {}, "no decode member has announced itself"),
        (
            (prefill("p0"), view("d0", exclusion=ExclusionCause.SUSPECT)),
            {},
            "no decode member takes work",
        ),
        (MEMBERS, {"store": StoreFacts(is_reachable=False)}, "the KV store does not answer"),
        ((), {"store": StoreFacts(is_reachable=False)}, "the KV store does not answer"),
        (MEMBERS, {"is_draining": True}, "draining"),
        (MEMBERS, {"is_ready": False}, "starting, or members with different KV layouts"),
        (MEMBERS, {}, ""),
    ],
)
def test_why_nothing_is_served(
    members: tuple[MemberView, ...], changes: dict[str, Any], why: str
) -> None:
    assert state(members, **changes)["health"]["why"] == why


def test_policies_without_shares_name_no_engines() -> None:
    told = state(knowledge=known(None))
    assert not told["has_shares"]
    assert [item["engines"] for item in told["classes"]] == [None, None]


def test_the_last_requests_tell_of_the_store() -> None:
    told = state(
        ended=(ended("a", prefetched_bytes=20), ended("b", first_token_us=4000)),
        store=StoreFacts(is_reachable=True, refusal="full", used_share=0.9, handoff_share=0.7),
    )
    assert told["requests"]["first_token_p50_s"] == 0.003
    assert [line["request_id"] for line in told["trips"]] == ["a", "b"]
    store = told["store"]
    assert (store["hit_share"], store["ahead_share"]) == (0.25, 0.125)
    assert (store["refusal"], store["used_share"], store["handoff_share"]) == ("full", 0.9, 0.7)


def test_neither_tokens_nor_tenants_are_told() -> None:
    asked = PlacementRequest(
        request_id="q", attempt=1, num_tokens=5, max_new_tokens=5, tenant="secret-tenant"
    )
    record = decide(POLICY, asked, MEMBERS, rotation=0, now=NOW)
    told = state(records=(record,), ended=(ended(),))
    assert [line["request_id"] for line in told["decisions"]] == ["q"]
    text = json.dumps(told)
    assert "secret-tenant" not in text
    assert "token_ids" not in text


def test_what_is_infinite_becomes_a_word() -> None:
    assert finite({"a": [1.5, float("inf")], "b": (float("nan"),)}) == {
        "a": [1.5, "inf"],
        "b": ["nan"],
    }
