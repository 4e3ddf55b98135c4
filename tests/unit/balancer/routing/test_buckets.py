"""`sgl_bucket`: one member per bucket, boundaries that follow the lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.membership.members import ExclusionCause
from balancer.routing.buckets import BucketMemory, Buckets, cut
from balancer.routing.events import Decided, RoundBegan
from balancer.routing.options import RoutingOptions
from tests.fakes.placements import engine, known, place, request, sink


def memory_with(lengths: list[int]) -> BucketMemory:
    memory = BucketMemory(RoutingOptions(round_s=5.0, bucket_drift=2.0))
    for number, length in enumerate(lengths):
        memory.observe(
            Decided(
                request_id=str(number),
                at=0.0,
                num_tokens=length,
                cached_tokens=0,
                length_class=0,
                quota_s=0.1,
            )
        )
    return memory


def begin(*loads: float) -> RoundBegan:
    engines = tuple((f"p{i}", load, int(load > 0)) for i, load in enumerate(loads))
    return RoundBegan(at=5.0, engines=engines, longest_tokens=1000)


def buckets(memory: BucketMemory) -> Buckets:
    own = memory.knowledge().own
    assert isinstance(own, Buckets)
    return own


def test_buckets_get_equal_tokens() -> None:
    # 1 to 100: half of the 5,050 tokens are in lengths up to 70.
    assert cut(list(range(1, 101)), 2) == (71,)
    assert cut([], 3) == (0, 0)
    assert cut([5], 1) == ()


@pytest.mark.medium
@given(st.lists(st.integers(1, 10**6), min_size=1), st.integers(1, 9))
def test_boundaries_ascend(lengths: list[int], num_buckets: int) -> None:
    boundaries = cut(sorted(lengths), num_buckets)
    assert len(boundaries) == num_buckets - 1
    assert list(boundaries) == sorted(boundaries)


def test_boundaries_are_cut_anew_only_when_loads_drift() -> None:
    memory = memory_with(list(range(1, 101)))
    assert memory.next_round_at(3.0) == 3.0
    memory.observe(begin(0.0, 0.0))
    assert memory.next_round_at(6.0) == 10.0
    assert buckets(memory) == Buckets(engines=("p0", "p1"), boundaries=(71,))
    for number in range(2000):
        memory.observe(
            Decided(
                request_id=f"late-{number}",
                at=6.0,
                num_tokens=10,
                cached_tokens=0,
                length_class=0,
                quota_s=0.1,
            )
        )
    memory.observe(begin(1.0, 1.9))
    assert buckets(memory).boundaries == (71,)
    memory.observe(begin(1.0, 2.1))
    assert buckets(memory).boundaries == (10,)
    memory.observe(begin(1.0, 1.0, 1.0))
    assert len(buckets(memory).boundaries) == 2


def test_a_request_goes_to_its_bucket_or_the_nearest() -> None:
    own = Buckets(engines=("p0", "p1", "p2"), boundaries=(100, 1000))
    views = [engine("p0"), engine("p1"), engine("p2"), engine("p3"), sink()]

    def chosen(num_tokens: int, found: list) -> str:
        return place("sgl_bucket", found, request(num_tokens), knowledge=known(own)).prefill_id

    assert [chosen(n, views) for n in (1, 99, 100, 999, 1000)] == ["p0", "p0", "p1", "p1", "p2"]
    away = [engine("p2", exclusion=ExclusionCause.STALE)]
    assert chosen(5000, [views[0], views[1], *away, sink()]) == "p1"


def test_before_there_are_buckets_anybody_serves() -> None:
    views = [engine("p0"), engine("p1"), sink()]
    assert {place("sgl_bucket", views, rotation=i).prefill_id for i in range(2)} == {"p0", "p1"}
