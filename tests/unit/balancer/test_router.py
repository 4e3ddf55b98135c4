"""The router: decisions with memory, told to a journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from balancer.explain.decisions import DecisionRing, re_execute
from balancer.membership import Membership
from balancer.membership.members import Role
from balancer.router import Router
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import make_policy
from balancer.routing.shares import Shares
from tests.fakes.memberships import member
from tests.fakes.placements import request


class Bench:
    def __init__(self, num_engines: int = 4, **options: Any) -> None:
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.members = Membership(stale_after_s=1e3, forget_after_s=1e4)
        for i in range(num_engines):
            self.members.observe(member(f"p{i}", Role.PREFILL, address=f"p{i}"), 0.0)
        self.members.observe(member("d0"), 0.0)
        self.router = Router(
            members=self.members,
            policy=make_policy("deepseek", RoutingOptions(boundaries=(50,), **options)),
            decisions=DecisionRing(10),
            on_call=lambda call, arguments: self.calls.append((call, arguments)),
        )


def test_every_decision_is_kept_and_can_be_repeated() -> None:
    bench = Bench()
    for number in range(3):
        bench.router.place(request(request_id=f"r{number}"), now=float(number))
    [record] = bench.router.decisions.explain("r1")
    assert record.rotation == 1
    assert record.decided_at == 1.0
    assert re_execute(record, bench.router.policy) == record.placement


def test_measured_times_and_lengths_reach_the_next_decision() -> None:
    bench = Bench()
    first = bench.router.place(request(), now=0.0).placement
    bench.router.prefill_ended("r", 1.0, compute_s=100 * first.quota_s)
    bench.router.finished("r", 2.0, output_tokens=5)
    second = bench.router.place(request(request_id="s"), now=2.0).placement
    assert second.quota_s > 10 * first.quota_s
    assert (first.output_tokens, second.output_tokens) == (20, 5)


def test_rounds_begin_with_decisions() -> None:
    bench = Bench(round_s=5.0)
    for now, tokens in ((0.0, 10), (4.9, 100)):
        bench.router.place(request(tokens, request_id=str(now)), now=now)
        assert bench.router.knowledge().own == Shares()
    bench.router.place(request(request_id="late"), now=5.0)
    own = bench.router.knowledge().own
    assert isinstance(own, Shares)
    assert own.class_of.keys() == {"p0", "p1", "p2", "p3"}
    assert set(own.class_of.values()) == {0, 1}


def test_rounds_end_with_time_too() -> None:
    bench = Bench(round_s=5.0)
    bench.router.pass_time(50.0)  # rounds are counted from the first decision
    bench.router.place(request(request_id="a"), now=100.0)
    bench.router.pass_time(104.9)
    assert bench.router.knowledge().own == Shares()
    bench.router.pass_time(105.0)
    own = bench.router.knowledge().own
    assert isinstance(own, Shares)
    assert set(own.class_of.values()) == {0, 1}
    bench.router.prefill_ended("a", 106.0)
    bench.router.finished("a", 107.0)
    bench.router.pass_time(109.9)
    assert bench.router.knowledge().own is own
    bench.router.pass_time(110.0)  # it still counts what was carried over
    bench.router.pass_time(115.0)
    assert bench.router.knowledge().own == Shares()  # nobody came for a round
    assert [call for call, _ in bench.calls if call == "pass_time"] == ["pass_time"] * 3


def test_the_journal_sees_calls_and_outcomes() -> None:
    bench = Bench(num_engines=1)
    bench.router.place(request(), now=1.0)
    bench.router.prefill_ended("r", 2.0)
    bench.router.finished("r", 3.0)
    assert [call for call, _ in bench.calls] == ["place", "prefill_ended", "finished"]
    outcome = bench.calls[0][1]["outcome"]
    assert outcome == {"verdict": "place", "prefill_id": "p0", "decode_id": "d0"}
