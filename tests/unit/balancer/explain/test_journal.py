"""A run written down and decided again: equal, decision by decision."""

from __future__ import annotations

import json
import random

import pytest

from balancer.explain.journal import Compared, JournalError, Outcome, recorded_router, replay
from balancer.membership.members import Role
from balancer.routing.base import Verdict
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import POLICIES
from tests.fakes.memberships import member
from tests.fakes.placements import LONG, request

OPTIONS = RoutingOptions(boundaries=(100, 1000), round_s=0.5, starvation_s=0.01)


def record(policy: str, num_requests: int, seed: int = 3) -> list[str]:
    """A run with heartbeats, failures, drains, restarts and requests of all sizes."""
    lines: list[str] = []
    members, router = recorded_router(
        lines.append,
        policy=policy,
        options=OPTIONS,
        stale_after_s=1.0,
        forget_after_s=3.0,
        records=4,
    )
    rng, now, live = random.Random(seed), 0.0, []
    names = [(Role.PREFILL, f"p{i}") for i in range(5)] + [(Role.DECODE, f"d{i}") for i in range(3)]
    for number in range(num_requests):
        now += rng.expovariate(30)
        for role, name in names:
            if number == 0 or rng.random() < 0.2:
                load = (
                    {"running": rng.randrange(3), "max_running": 30} if role is Role.DECODE else {}
                )
                members.observe(
                    member(name, role, address=name, sequence=number, max_model_len=LONG, **load),
                    now,
                )
        if rng.random() < 0.05:
            members.suspect(rng.choice(names)[1], "fell", now, 0.2)
            members.order_drain("p4", rng.random() < 0.5)
            members.sweep(now)
            members.listen(now)
        router.pass_time(now)
        wanted = request(
            int(10 ** rng.uniform(1, 4)),
            request_id=f"r{number}",
            arrived_at=now,
            cached_tokens=rng.randrange(10),
            avoid=frozenset({"p1"} if rng.random() < 0.1 else ()),
            local_cached={"p2": 5},
        )
        placement = router.place(wanted, now).placement
        if placement.verdict is Verdict.PLACE:
            tokens = wanted.num_tokens
            for name, quota_s in (
                (placement.prefill_id, placement.quota_s),
                (placement.decode_id, 0),
            ):
                members.probe(name, now)
                members.assign(name, wanted.request_id, tokens, quota_s=quota_s, now=now)
            live.append((wanted.request_id, placement))
        while live and rng.random() < 0.5:
            name, old = live.pop(rng.randrange(len(live)))
            members.unassign(old.prefill_id, name, now=now)
            members.absolve(old.prefill_id)
            router.prefill_ended(name, now, compute_s=old.quota_s * rng.uniform(0.5, 2))
            members.unassign(old.decode_id, name, now=now)
            router.finished(name, now, output_tokens=rng.randrange(20))
    return lines


@pytest.mark.medium
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_recorded_run_decides_the_same_again(policy: str) -> None:
    compared = list(replay(record(policy, 150)))
    assert len(compared) == 150
    assert all(item.is_equal for item in compared)
    outcomes = {item.recorded for item in compared}
    assert len(outcomes) > 3, "a run in which nothing varies proves nothing"


def test_a_difference_is_told_with_its_line() -> None:
    lines = record("round_robin", 5)
    places = [i for i, line in enumerate(lines) if '"call": "place"' in line]
    entry = json.loads(lines[places[2]])
    entry["outcome"]["prefill_id"] = "elsewhere"
    lines[places[2]] = json.dumps(entry)
    different = [item for item in replay(lines) if not item.is_equal]
    assert [(item.request_id, item.line) for item in different] == [("r2", places[2] + 1)]
    assert different[0].recorded.prefill_id == "elsewhere"
    assert isinstance(different[0], Compared)
    assert isinstance(different[0].replayed, Outcome)


def test_what_cannot_be_replayed_is_named() -> None:
    lines = record("random", 2)
    with pytest.raises(JournalError, match="line 2 cannot be replayed"):
        list(replay([lines[0], '{"call": "observe"}']))
    with pytest.raises(JournalError, match="line 2: unknown call 'explode'"):
        list(replay([lines[0], '{"call": "explode"}']))
    header = json.loads(lines[0])
    with pytest.raises(JournalError, match="version 99 decided, this is version 1"):
        list(replay([json.dumps({**header, "version": 99})]))
    with pytest.raises(JournalError, match="format None is not 1"):
        list(replay(["{}"]))
