"""Requests, clusters and knowledge for tests of placement."""

from __future__ import annotations

from typing import Any

from balancer.explain.decisions import decide
from balancer.membership.members import MemberView
from balancer.routing.base import Knowledge, Placement, PlacementRequest, Policy
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import make_policy
from balancer.routing.quota import QuotaModel
from tests.fakes.memberships import prefill, view

LONG = 1 << 20


def request(num_tokens: int = 100, **fields: Any) -> PlacementRequest:
    """A request for a few tokens."""
    values: dict[str, Any] = {"request_id": "r", "attempt": 1, "max_new_tokens": 20, **fields}
    return PlacementRequest(num_tokens=num_tokens, **values)


def engine(member_id: str, *, wait_s: float = 0.0, **fields: Any) -> MemberView:
    """A prefill member with a long context that has so many seconds of work."""
    busy = {"requests": int(wait_s > 0)}
    return prefill(member_id, quota_s=wait_s, max_model_len=LONG, **{**busy, **fields})


def sink(member_id: str = "d0", **fields: Any) -> MemberView:
    """A decode member with a long context and no bounds."""
    return view(member_id, max_model_len=LONG, **fields)


def known(own: object = None, *, a: float = 1e-4, num_classes: int = 4) -> Knowledge:
    """Knowledge of a cost in proportion to new tokens, and of ten tokens of output."""
    quota = QuotaModel(a=a, b=0.0, c=0.0)
    return Knowledge(quota=quota, output_tokens=(10.0,) * num_classes, own=own)


def place(
    policy: Policy | str,
    views: list[MemberView],
    wanted: PlacementRequest | None = None,
    *,
    options: RoutingOptions | None = None,
    knowledge: Knowledge | None = None,
    rotation: int = 0,
    now: float = 0.0,
) -> Placement:
    """Decides once."""
    if isinstance(policy, str):
        policy = make_policy(policy, options)
    record = decide(
        policy,
        wanted or request(),
        views,
        rotation=rotation,
        now=now,
        knowledge=known() if knowledge is None else knowledge,
    )
    return record.placement
