"""Records of placement decisions: what was known, what was chosen, why.

A record holds everything the policy saw, so `re_execute` gives the same answer from the record
alone. Records live in a ring that is bounded by requests; the oldest request is dropped first.
Snapshots are shared between records, not copied, and texts are made only when somebody asks.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from balancer.membership.members import MemberView
from balancer.membership.snapshot import Snapshot, snapshot_of
from balancer.routing.base import Knowledge, Placement, PlacementRequest, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision.

    Attributes:
        snapshot: All members as they were known at that moment.
        knowledge: What the policy remembered.
    """

    request: PlacementRequest
    policy: str
    policy_version: int
    rotation: int
    snapshot: Snapshot
    knowledge: Knowledge
    placement: Placement

    @property
    def decided_at(self) -> float:
        """Monotonic seconds of the balancer's clock."""
        return self.snapshot.taken_at

    @property
    def views(self) -> tuple[MemberView, ...]:
        """The members as objects, with the age of what was known of each."""
        return self.snapshot.views()


class DecisionRing:
    """The decisions of the last `max_requests` requests."""

    def __init__(self, max_requests: int, max_per_request: int = 32) -> None:
        if max_requests < 1 or max_per_request < 1:
            raise ValueError(
                f"max_requests {max_requests} and max_per_request {max_per_request} must be at "
                "least 1"
            )
        self._max_requests = max_requests
        self._max_per_request = max_per_request
        self._records: OrderedDict[str, list[DecisionRecord]] = OrderedDict()

    def append(self, record: DecisionRecord) -> None:
        """Keeps a record; drops the oldest request's records if there are too many.

        A request that asks again and again while it waits keeps its first and its latest records.
        """
        request_id = record.request.request_id
        kept = self._records.setdefault(request_id, [])
        kept.append(record)
        if len(kept) > self._max_per_request:
            del kept[self._max_per_request // 2]
        self._records.move_to_end(request_id)
        if len(self._records) > self._max_requests:
            self._records.popitem(last=False)

    def explain(self, request_id: str) -> tuple[DecisionRecord, ...]:
        """The decisions for a request, oldest first; empty if there is none (any more)."""
        return tuple(self._records.get(request_id, ()))

    def recent(self, max_records: int) -> tuple[DecisionRecord, ...]:
        """The last decision on each of the requests that were decided last, newest first."""
        newest = itertools.islice(reversed(self._records.values()), max_records)
        return tuple(records[-1] for records in newest)

    def __len__(self) -> int:
        """Requests with records."""
        return len(self._records)


def decide(
    policy: Policy,
    request: PlacementRequest,
    members: Snapshot | Iterable[MemberView],
    *,
    rotation: int,
    now: float,
    knowledge: Knowledge | None = None,
) -> DecisionRecord:
    """Lets the policy choose and returns the record of it."""
    snapshot = members if isinstance(members, Snapshot) else snapshot_of(members, now)
    known = policy.memory().knowledge() if knowledge is None else knowledge
    return DecisionRecord(
        request=request,
        policy=policy.name,
        policy_version=policy.version,
        rotation=rotation,
        snapshot=snapshot,
        knowledge=known,
        placement=policy.choose(request, snapshot, known, rotation),
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
    return policy.choose(record.request, record.snapshot, record.knowledge, record.rotation)
