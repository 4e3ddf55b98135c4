"""Records of placement decisions: what was known, what was chosen, why.

A record holds everything the policy saw, so `re_execute` gives the same answer from the record
alone. Records live in a ring that is bounded by requests; the oldest request is dropped first.
Members' views are shared between records, not copied.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from balancer.membership import MemberView
from balancer.routing.base import Placement, PlacementRequest, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision.

    Attributes:
        decided_at: Monotonic seconds of the balancer's clock.
        views: All members as they were known at that moment, with the age of each snapshot.
    """

    request: PlacementRequest
    policy: str
    policy_version: int
    decided_at: float
    rotation: int
    views: tuple[MemberView, ...]
    placement: Placement


class DecisionRing:
    """The decisions of the last `max_requests` requests."""

    def __init__(self, max_requests: int) -> None:
        if max_requests < 1:
            raise ValueError(f"max_requests {max_requests} must be at least 1")
        self._max_requests = max_requests
        self._records: OrderedDict[str, list[DecisionRecord]] = OrderedDict()

    def append(self, record: DecisionRecord) -> None:
        """Keeps a record; drops the oldest request's records if there are too many."""
        request_id = record.request.request_id
        self._records.setdefault(request_id, []).append(record)
        self._records.move_to_end(request_id)
        if len(self._records) > self._max_requests:
            self._records.popitem(last=False)

    def explain(self, request_id: str) -> tuple[DecisionRecord, ...]:
        """The decisions for a request, oldest first; empty if there is none (any more)."""
        return tuple(self._records.get(request_id, ()))

    def __len__(self) -> int:
        """Requests with records."""
        return len(self._records)


def decide(
    policy: Policy,
    request: PlacementRequest,
    views: tuple[MemberView, ...],
    *,
    rotation: int,
    now: float,
) -> DecisionRecord:
    """Lets the policy choose and returns the record of it."""
    return DecisionRecord(
        request=request,
        policy=policy.name,
        policy_version=policy.version,
        decided_at=now,
        rotation=rotation,
        views=views,
        placement=policy.choose(request, views, rotation),
    )


def re_execute(record: DecisionRecord, policy: Policy) -> Placement:
    """Decides again from the record alone.

    Raises:
        ValueError: The policy is another one, or another version, than the one that decided.
    """
    if (policy.name, policy.version) != (record.policy, record.policy_version):
        raise ValueError(
            f"record was made by {record.policy} version {record.policy_version}, "
            f"not by {policy.name} version {policy.version}"
        )
    return policy.choose(record.request, record.views, record.rotation)
