"""The default policy as a whole: shares follow the work, and classes are kept apart."""

from __future__ import annotations

from collections import Counter

import pytest

from balancer.explain.decisions import DecisionRing
from balancer.membership import Membership
from balancer.membership.members import Role
from balancer.router import Router
from balancer.routing.deepseek import deepseek
from balancer.routing.options import RoutingOptions
from balancer.routing.shares import Shares
from tests.fakes.memberships import member
from tests.fakes.placements import LONG, request

OPTIONS = RoutingOptions(boundaries=(10_000,), round_s=10.0, max_moves=2)


class Cluster:
    """Eight engines that compute one prompt after another, a second per 10,000 tokens."""

    def __init__(self) -> None:
        self.members = Membership(stale_after_s=1e6, forget_after_s=1e6)
        for i in range(8):
            self.observe(f"p{i}", Role.PREFILL)
        self.observe("d0", Role.DECODE)
        self.router = Router(
            members=self.members, policy=deepseek(OPTIONS), decisions=DecisionRing(10)
        )
        self.free_at = dict.fromkeys((f"p{i}" for i in range(8)), 0.0)
        self.running: list[tuple[float, str, str, float]] = []
        self.serial = 0

    def observe(self, name: str, role: Role) -> None:
        self.members.observe(member(name, role, address=name, max_model_len=LONG), 0.0)

    def arrive(self, now: float, num_tokens: int) -> float:
        """One request; returns how long it waits for its engine."""
        self.end_until(now)
        self.serial += 1
        name = f"r{self.serial}"
        placement = self.router.place(
            request(num_tokens, request_id=name, arrived_at=now), now
        ).placement
        engine_id, work_s = placement.prefill_id, num_tokens / 10_000
        assert engine_id, placement.reason
        self.members.assign(engine_id, name, num_tokens, quota_s=placement.quota_s, now=now)
        begin = max(now, self.free_at[engine_id])
        self.free_at[engine_id] = begin + work_s
        self.running.append((begin + work_s, name, engine_id, work_s))
        return begin - now

    def end_until(self, now: float) -> None:
        for end, name, engine_id, work_s in sorted(self.running):
            if end <= now:
                self.members.unassign(engine_id, name, now=end)
                self.router.prefill_ended(name, end, compute_s=work_s)
                self.router.finished(name, end, output_tokens=5)
        self.running = [item for item in self.running if item[0] > now]

    def counts(self) -> list[int]:
        own = self.router.knowledge().own
        assert isinstance(own, Shares)
        return own.counts(2)


@pytest.mark.medium
def test_engines_follow_the_work_and_short_requests_do_not_wait_behind_long_ones() -> None:
    cluster, waits = Cluster(), []
    now = 0.0
    # Short: 10 a second of 0.1 s each, one engine's worth. Long: 6 engines' worth of 12 s each.
    while now < 120.0:
        for step in range(10):
            waits.append(cluster.arrive(now + step / 10, 1_000))
        if int(now) % 2 == 0:
            cluster.arrive(now + 0.95, 120_000)
        now += 1.0
    assert cluster.counts()[1] >= 5
    settled = sorted(waits[400:])
    assert settled[int(0.99 * len(settled))] < 1.0  # the starvation bound


@pytest.mark.medium
def test_when_the_mix_turns_the_shares_turn_with_it() -> None:
    cluster = Cluster()
    now = 0.0
    while now < 60.0:
        cluster.arrive(now, 20_000)
        now += 0.4
    assert cluster.counts() == [1, 7]
    while now < 160.0:
        cluster.arrive(now, 9_000)
        now += 0.2
    assert cluster.counts()[0] >= 6
    served = Counter(engine_id for _, _, engine_id, _ in cluster.running)
    assert max(served.values()) <= 3
