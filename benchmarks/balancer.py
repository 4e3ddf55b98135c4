"""What a placement decision costs, with its record, by number of members.

    python -m benchmarks.balancer --json [--decisions 2000] [--policy deepseek]

Prints one object on its last line:

    policy
    members: {16 | 128 | 1024: {...}}   as many prefill as decode members together
        decisions_per_s     decisions with everything a live one needs: snapshot of the members,
                            choice, record in a full ring, the event for the memory, and the weight
                            of the choice put on both members and taken off again
        us_per_decision     the same, in microseconds: median of single ones
        us_with_heartbeats  the same, when between two decisions two members announce themselves
        us_p99              of the single decision, without heartbeats
        cpu_us_per_decision processor time of one, which other work on the machine hardly moves
        explain_us          making the texts and objects of one record
        what_if_us          finding what would have changed it
    replay: {decisions, equal}          a short recorded run decided again from its journal
    environment

Work in flight is twice the number of members, lengths are drawn log-uniformly from 100 to 300,000
tokens. One thread. Compare ratios; absolute figures move with whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from balancer.explain.decisions import DecisionRecord, DecisionRing
from balancer.explain.journal import recorded_router, replay
from balancer.explain.what_if import what_would_change
from balancer.membership import Membership
from balancer.membership.members import Load, Member, Role
from balancer.router import Router
from balancer.routing.base import PlacementRequest
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import POLICIES, make_policy
from benchmarks.environment import describe, median

SIZES = (16, 128, 1024)
RECORDS = 256
SEED = 0
CONTEXT = 1 << 20


class Fleet:
    """Members, a router, and requests that come and go."""

    def __init__(self, num_members: int, members: Membership, router: Router) -> None:
        self._rng = random.Random(SEED)
        self._members = members
        self._router = router
        self._now = 0.0
        self._serial = 0
        self._in_flight: deque[tuple[str, DecisionRecord]] = deque()
        self._max_in_flight = 2 * num_members
        self._beats = 1
        self._ids = [(role, f"{role.value}-{i}") for i in range(num_members // 2) for role in Role]
        for role, member_id in self._ids:
            members.observe(self._member(role, member_id), 0.0)

    def beat(self) -> None:
        """The next two members announce themselves."""
        for _ in range(2):
            role, member_id = self._ids[self._beats % len(self._ids)]
            self._members.observe(self._member(role, member_id), self._now)

    def decide(self) -> DecisionRecord:
        """Places one request; ends the oldest one when there are enough."""
        self._serial += 1
        self._now += 1e-4
        request = PlacementRequest(
            request_id=f"r{self._serial}",
            attempt=1,
            num_tokens=int(100 * 3000 ** self._rng.random()),
            max_new_tokens=1000,
            cached_tokens=0,
            arrived_at=self._now,
        )
        record = self._router.place(request, self._now)
        name, placement = request.request_id, record.placement
        tokens = request.num_tokens
        assign = self._members.assign
        assign(placement.prefill_id, name, tokens, quota_s=placement.quota_s, now=self._now)
        assign(placement.decode_id, name, tokens + placement.output_tokens, now=self._now)
        self._in_flight.append((name, record))
        if len(self._in_flight) > self._max_in_flight:
            self._end(*self._in_flight.popleft())
        return record

    def _end(self, name: str, record: DecisionRecord) -> None:
        placement = record.placement
        self._members.unassign(placement.prefill_id, name, now=self._now)
        self._members.unassign(placement.decode_id, name, now=self._now)
        self._router.finished(name, self._now, output_tokens=200)

    def _member(self, role: Role, member_id: str) -> Member:
        self._beats += 1
        return Member(
            member_id=member_id,
            role=role,
            address=member_id,
            group_id=role.value,
            fingerprint=b"layout-1",
            model="m",
            max_model_len=CONTEXT,
            block_tokens=128,
            ready=True,
            sequence=self._beats,
            load=Load(kv_capacity_tokens=8 * CONTEXT, max_running=256),
        )


def measure(policy: str, num_members: int, decisions: int) -> dict[str, float]:
    """Figures of one size; see the module."""
    members = Membership(stale_after_s=1e6, forget_after_s=1e6)
    chosen = make_policy(policy)
    router = Router(members=members, policy=chosen, decisions=DecisionRing(RECORDS))
    fleet = Fleet(num_members, members, router)
    for _ in range(max(RECORDS, 3 * num_members)):
        record = fleet.decide()
    cpu_s = time.thread_time()
    singles = [timed(fleet.decide) for _ in range(decisions)]
    cpu_s = time.thread_time() - cpu_s

    def with_heartbeats() -> None:
        fleet.beat()
        fleet.decide()

    beaten = [timed(with_heartbeats) for _ in range(decisions)]
    us = median(singles) * 1e6
    return {
        "decisions_per_s": round(1e6 / us),
        "us_per_decision": round(us, 1),
        "us_with_heartbeats": round(median(beaten) * 1e6, 1),
        "us_p99": round(sorted(singles)[int(0.99 * (len(singles) - 1))] * 1e6, 1),
        "cpu_us_per_decision": round(cpu_s / decisions * 1e6, 1),
        "explain_us": round(timed(lambda: explain(record)) * 1e6, 1),
        "what_if_us": round(timed(lambda: what_would_change(record, chosen)) * 1e6, 1),
    }


def explain(record: DecisionRecord) -> tuple[Any, ...]:
    """Everything a record has to say."""
    placement = record.placement
    return placement.reason, placement.candidates, placement.exclusions, record.views


def timed(act: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def check_replay(policy: str, decisions: int) -> dict[str, int]:
    """Records a run and decides it again."""
    lines: list[str] = []
    members, router = recorded_router(
        lines.append,
        policy=policy,
        options=RoutingOptions(round_s=0.005),
        stale_after_s=1e6,
        forget_after_s=1e6,
        records=1,
    )
    fleet = Fleet(16, members, router)
    for _ in range(decisions):
        fleet.beat()
        fleet.decide()
    compared = list(replay(lines))
    return {"decisions": len(compared), "equal": sum(item.is_equal for item in compared)}


def main(argv: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.balancer", description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the object")
    parser.add_argument("--decisions", type=int, default=2000, help="per size (2000)")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="deepseek")
    options = parser.parse_args(argv)
    sizes = {}
    for num_members in SIZES:
        sizes[num_members] = measure(options.policy, num_members, options.decisions)
        if not options.json:
            print(num_members, sizes[num_members], flush=True)
    result = {
        "policy": options.policy,
        "members": sizes,
        "replay": check_replay(options.policy, 300),
        "environment": describe(SEED),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
