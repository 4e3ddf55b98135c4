"""Engine shares: they sum up, floors hold, moves are few and worth it, nothing is dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.routing.shares import Engine, Shares, largest_remainder, next_shares

ALL = [True] * 4


def engines(num: int, **busy: float) -> list[Engine]:
    return [
        Engine(engine_id=f"p{i}", quota_s=busy.get(f"p{i}", 0.0), requests=int(f"p{i}" in busy))
        for i in range(num)
    ]


def step(shares: Shares, found: list[Engine], demand: list[float], **options: float) -> Shares:
    values = {"max_moves": 1, "min_gain": 0.1, **options}
    return next_shares(shares, found, demand, ALL[: len(demand)], **values)  # type: ignore[arg-type]


def test_shares_follow_demand_by_largest_remainder() -> None:
    # 16 engines; ideal 3.04, 7.2, 5.76, 0: the fourth has its floor, the second gave way.
    assert largest_remainder([19, 45, 36, 0], 16, ALL) == [3, 7, 5, 1]
    assert largest_remainder([19, 45, 36, 0], 16, [True, True, True, False]) == [3, 7, 6, 0]
    assert largest_remainder([0, 0, 0, 0], 8, ALL) == [2, 2, 2, 2]
    assert largest_remainder([0, 0], 3, [False, False]) == [2, 1]


def test_with_fewer_engines_than_classes_nobody_has_a_floor() -> None:
    assert largest_remainder([10, 1, 1, 1], 1, ALL) == [1, 0, 0, 0]
    assert largest_remainder([1, 10, 10, 1], 2, ALL) == [0, 1, 1, 0]


demands = st.lists(st.floats(0, 1e6), min_size=1, max_size=6)


@pytest.mark.medium
@given(demand=demands, num_engines=st.integers(0, 200), data=st.data())
def test_shares_sum_to_the_engines_and_keep_floors(
    demand: list[float], num_engines: int, data: st.DataObject
) -> None:
    must = data.draw(st.lists(st.booleans(), min_size=len(demand), max_size=len(demand)))
    shares = largest_remainder(demand, num_engines, must)
    assert sum(shares) == num_engines
    assert min(shares) >= 0
    if num_engines >= sum(must):
        assert all(share >= 1 for share, needed in zip(shares, must, strict=True) if needed)


@given(demand=st.lists(st.floats(1, 1e6), min_size=2, max_size=6), num=st.integers(10, 200))
def test_more_demand_never_means_a_smaller_share(demand: list[float], num: int) -> None:
    shares = largest_remainder(demand, num, [True] * len(demand))
    for one, other in zip(demand, shares, strict=True):
        for two, another in zip(demand, shares, strict=True):
            assert one <= two or other >= another


def test_the_first_round_assigns_everybody_at_once() -> None:
    shares = step(Shares(), engines(16), [19, 45, 36, 0])
    assert shares.counts(4) == [3, 7, 5, 1]
    assert shares.moving == frozenset()


def test_at_most_so_many_engines_move_in_a_round() -> None:
    shares = step(Shares(), engines(8), [4, 4])
    moved = step(shares, engines(8), [1, 7])
    assert moved.counts(2) == [3, 5]
    assert step(shares, engines(8), [1, 7], max_moves=3).counts(2) == [1, 7]


def test_nobody_moves_for_a_small_gain() -> None:
    shares = step(Shares(), engines(20), [10, 10])
    # 11 of demand on 10 engines instead of 11: a gain of a ninth.
    assert step(shares, engines(20), [9, 11], min_gain=0.2).counts(2) == [10, 10]
    assert step(shares, engines(20), [9, 11], min_gain=0.05).counts(2) == [9, 11]


def test_the_idlest_engine_moves_and_drains_first() -> None:
    shares = Shares(class_of={"p0": 0, "p1": 0, "p2": 0, "p3": 1})
    moved = step(shares, engines(4, p0=5.0, p1=2.0, p2=3.0), [1, 9])
    assert moved.class_of["p1"] == 1
    assert moved.moving == {"p1"}
    # Still busy: it goes on moving, and does not move again.
    later = step(moved, engines(4, p0=5.0, p1=1.0, p2=3.0), [9, 1])
    assert later.moving == {"p1"}
    assert later.class_of["p1"] == 1
    assert step(later, engines(4, p0=5.0), [9, 1]).moving == frozenset()


def test_a_class_that_lost_its_last_engine_gets_one_at_once() -> None:
    shares = Shares(class_of={"p0": 0, "p1": 0, "p2": 0, "p9": 1})
    after = step(shares, engines(3), [9, 0.001], max_moves=1, min_gain=99.0)
    assert after.counts(2) == [2, 1]


def test_engines_that_come_join_the_class_that_lacks_most() -> None:
    shares = Shares(class_of={"p0": 0, "p1": 1})
    after = step(shares, engines(4), [1, 9])
    assert after.counts(2) == [1, 3]


rounds = st.lists(
    st.tuples(
        st.lists(st.floats(0, 100), min_size=3, max_size=3),
        st.sets(st.integers(0, 9), min_size=1),
        st.sets(st.integers(0, 9)),
    ),
    max_size=8,
)


@pytest.mark.medium
@given(rounds=rounds, max_moves=st.integers(1, 3))
def test_over_rounds_every_engine_has_one_class_and_floors_hold(
    rounds: list[tuple[list[float], set[int], set[int]]], max_moves: int
) -> None:
    shares = Shares()
    for demand, present, busy in rounds:
        found = [
            Engine(engine_id=f"p{i}", quota_s=float(i in busy), requests=int(i in busy))
            for i in sorted(present)
        ]
        before = shares
        shares = step(before, found, demand, max_moves=max_moves)
        assert shares.class_of.keys() == {engine.engine_id for engine in found}
        counts = shares.counts(3)
        assert sum(counts) == len(found)
        if len(found) >= 3:
            assert min(counts) >= 1
        busy_ids = {f"p{i}" for i in busy}
        changed = {
            name
            for name, served in shares.class_of.items()
            if before.class_of.get(name, served) != served
        }
        # Who changed class with work at hand finishes it first; only busy ones drain.
        assert changed & busy_ids <= shares.moving
        assert shares.moving <= busy_ids


@pytest.mark.parametrize("num", [1, 2, 3])
def test_demand_is_kept_for_the_record(num: int) -> None:
    assert step(Shares(), engines(num), [1, 2]).demand_s == (1.0, 2.0)
