"""Tenants take turns by tokens; inside a tenant rank decides."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from balancer.admission.fair_queue import FairQueue, Place

QUANTUM = 1000


def place(number: int, tenant: str, cost: int, rank: float = 0.0) -> Place:
    return Place(rank, number, f"r{number}", tenant, cost, float("inf"))


def test_one_tenant_goes_by_rank_then_arrival() -> None:
    queue = FairQueue({}, QUANTUM)
    for number, rank in enumerate((0.0, -10.0, 5.0, 0.0)):
        queue.push(place(number, "a", 50_000, rank))
    assert [queue.pop().arrival for _ in range(4)] == [1, 0, 3, 2]
    assert len(queue) == 0


def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    queue = FairQueue({}, QUANTUM)
    for number in range(50):
        queue.push(place(number, "flood", 1000))
    queue.push(place(99, "quiet", 1000))
    assert "quiet" in [queue.pop().tenant for _ in range(2)]


def test_who_is_withdrawn_is_not_served() -> None:
    queue = FairQueue({}, QUANTUM)
    kept, gone = place(1, "a", 10), place(0, "b", 10)
    queue.push(gone)
    queue.push(kept)
    queue.remove(gone)
    queue.check_integrity()
    assert queue.pop() is kept


@settings(max_examples=80)
@given(
    weights=st.fixed_dictionaries({"a": st.sampled_from([0.5, 1.0, 3.0])}),
    costs=st.lists(st.integers(1, 20_000), min_size=10, max_size=60),
    others=st.lists(st.integers(1, 20_000), min_size=10, max_size=60),
)
def test_tenants_that_wait_get_tokens_by_weight(
    weights: dict[str, float], costs: list[int], others: list[int]
) -> None:
    """Stated bound: per unit of weight, at most a quantum and a request apart on each side."""
    queue = FairQueue(weights, QUANTUM)
    for tenant, wanted in (("a", costs), ("b", others)):
        for number, cost in enumerate(wanted):
            queue.push(place(number, tenant, cost))
    left = {"a": len(costs), "b": len(others)}
    served: Counter[str] = Counter()
    while all(left.values()):
        taken = queue.pop()
        queue.check_integrity()
        left[taken.tenant] -= 1
        served[taken.tenant] += taken.cost
        share_a, share_b = served["a"] / weights["a"], served["b"]
        largest = max(*costs, *others)
        assert abs(share_a - share_b) <= 2 * QUANTUM + largest / weights["a"] + largest


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 5000), st.booleans()), max_size=60
    )
)
def test_every_request_comes_out_once(steps: list[tuple[str, int, bool]]) -> None:
    queue = FairQueue({"c": 0.1}, QUANTUM)
    inside = {}
    for number, (tenant, cost, pops) in enumerate(steps):
        inside[number] = place(number, tenant, cost)
        queue.push(inside[number])
        if pops:
            del inside[queue.pop().arrival]
        queue.check_integrity()
    while inside:
        del inside[queue.pop().arrival]
    assert len(queue) == 0
