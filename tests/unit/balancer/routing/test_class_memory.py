"""Demand per class, rounds, and engines that move."""

from __future__ import annotations

from balancer.routing.class_memory import ClassMemory
from balancer.routing.events import Decided, Finished, PrefillEnded, RoundBegan
from balancer.routing.options import RoutingOptions
from balancer.routing.shares import Shares

OPTIONS = RoutingOptions(boundaries=(1000,), round_s=5.0, max_moves=1, min_gain=0.1)


def decided(name: str, length_class: int, quota_s: float, prefill_id: str = "p0") -> Decided:
    return Decided(
        request_id=name,
        at=0.0,
        num_tokens=100 if length_class == 0 else 2000,
        cached_tokens=0,
        length_class=length_class,
        quota_s=quota_s,
        prefill_id=prefill_id,
        decode_id="d0" if prefill_id else "",
    )


def begin(num: int, at: float = 5.0, **busy: float) -> RoundBegan:
    names = [f"p{i}" for i in range(num)]
    return RoundBegan(
        at=at,
        engines=tuple((name, busy.get(name, 0.0), int(name in busy)) for name in names),
        longest_tokens=4000,
    )


def shares(memory: ClassMemory) -> Shares:
    own = memory.knowledge().own
    assert isinstance(own, Shares)
    memory.check_integrity()
    return own


def test_demand_is_what_arrived_and_what_was_carried_over() -> None:
    memory = ClassMemory(OPTIONS)
    memory.observe(decided("a", 0, 1.0))
    memory.observe(decided("b", 1, 4.0))
    memory.observe(decided("held", 1, 2.0, prefill_id=""))
    memory.observe(begin(4))
    assert shares(memory).demand_s == (1.0, 6.0)
    memory.observe(PrefillEnded(request_id="a", at=6.0, compute_s=1.0))
    memory.observe(decided("c", 0, 0.5))
    memory.observe(begin(4))
    # Not computed at the begin of the round: a and b; a ended since, but it was carried over.
    assert shares(memory).demand_s == (1.5, 4.0)
    memory.observe(decided("d", 0, 0.25))
    memory.observe(begin(4))
    assert shares(memory).demand_s == (0.75, 4.0)


def test_a_request_that_is_decided_again_counts_once() -> None:
    memory = ClassMemory(OPTIONS)
    memory.observe(decided("a", 0, 1.0, prefill_id=""))
    memory.observe(decided("a", 0, 1.0, prefill_id="p1"))
    memory.observe(decided("gone", 1, 9.0, prefill_id=""))
    memory.observe(Finished(request_id="gone", at=1.0))
    memory.observe(begin(2))
    assert shares(memory).demand_s == (1.0, 0.0)


def test_a_quiet_round_forgets_the_shares() -> None:
    memory = ClassMemory(OPTIONS)
    memory.observe(begin(4))
    assert shares(memory) == Shares()
    memory.observe(decided("a", 0, 1.0))
    memory.observe(Finished(request_id="a", at=1.0))
    memory.observe(begin(4))
    assert sum(shares(memory).counts(2)) == 4
    memory.observe(begin(4))
    assert shares(memory) == Shares()  # every engine serves every class again
    memory.check_integrity()
    memory.observe(decided("b", 1, 1.0))
    memory.observe(begin(4))
    assert shares(memory).counts(2) == [1, 3]


def test_an_engine_that_moves_is_settled_when_its_old_work_is_done() -> None:
    memory = ClassMemory(OPTIONS)
    for number in range(2):
        memory.observe(decided(f"a{number}", 0, 5.0, prefill_id=f"p{number}"))
    memory.observe(begin(4, p0=5.0, p1=5.0))
    assert shares(memory).counts(2) == [3, 1]  # by demand 4 and 0, with a floor
    for number in range(4):
        memory.observe(decided(f"b{number}", 0, 0.1, prefill_id=f"p{number}"))
    memory.observe(decided("long", 1, 50.0, prefill_id="p3"))
    memory.observe(begin(4, at=10.0, p0=5.1, p1=5.1, p2=0.1, p3=50.0))
    moving = shares(memory).moving
    assert len(moving) == 1
    [mover] = moving
    own = [f"b{mover[1]}"] + ([f"a{mover[1]}"] if mover in ("p0", "p1") else [])
    memory.observe(decided("new", 1, 1.0, prefill_id=mover))  # does not belong to the old work
    for name in own:
        assert shares(memory).moving == {mover}
        memory.observe(PrefillEnded(request_id=name, at=11.0))
    assert shares(memory).moving == frozenset()
    assert shares(memory).class_of[mover] == 1


def test_rounds_begin_so_long_after_the_first_decision() -> None:
    memory = ClassMemory(OPTIONS)
    assert memory.next_round_at(100.0) == 105.0
    assert memory.next_round_at(104.0) == 105.0
    memory.observe(begin(1, at=107.0))
    assert memory.next_round_at(107.0) == 112.0


def test_a_class_no_member_is_long_enough_for_needs_no_engine() -> None:
    memory = ClassMemory(RoutingOptions(boundaries=(1000, 5000)))
    memory.observe(decided("a", 0, 1.0))
    memory.observe(decided("b", 1, 1.0))
    memory.observe(begin(4))
    assert shares(memory).counts(3) == [2, 2, 0]


def test_prefills_whose_end_is_never_told_are_given_up() -> None:
    memory = ClassMemory(OPTIONS)
    memory.observe(decided("lost", 0, 7.0))
    memory._estimates._open.clear()  # the ledger gave it up
    memory.observe(begin(2))
    memory.observe(decided("a", 1, 1.0))
    memory.observe(begin(2))
    assert shares(memory).demand_s == (0.0, 1.0)
