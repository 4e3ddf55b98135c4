"""`llmd_weighted`: scorers in [0, 1], weights, the sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.membership.snapshot import snapshot_of
from balancer.routing.composition import make_case
from balancer.routing.llmd import SCORERS
from balancer.routing.options import RoutingOptions
from balancer.routing.policies import make_policy
from tests.fakes.placements import engine, known, place, request, sink

VIEWS = [
    engine("p0", requests=4, running=1, tokens=50, kv_capacity_tokens=10_000),
    engine("p1", requests=2, running=2, tokens=2_500, kv_capacity_tokens=10_000),
    sink(),
]


def only(name: str) -> RoutingOptions:
    return RoutingOptions(weights={name: 1.0})


@pytest.mark.parametrize(
    ("name", "winner"),
    [("queue", "p1"), ("kv_utilisation", "p0"), ("token_load", "p0"), ("running", "p0")],
)
def test_each_scorer_alone(name: str, winner: str) -> None:
    assert place("llmd_weighted", VIEWS, options=only(name)).prefill_id == winner


def test_the_prefix_counts_by_its_share() -> None:
    wanted = request(100, local_cached={"p1": 25})
    placement = place("llmd_weighted", VIEWS, wanted, options=only("prefix"))
    assert placement.prefill_id == "p1"
    scores = [item.score[0] for item in placement.prefill_side.candidates()]
    assert scores == pytest.approx([0.0, -0.25])


def test_weights_add_up() -> None:
    options = RoutingOptions(weights={"queue": 2.0, "kv_utilisation": 4.0, "running": 0.0})
    scores = [
        item.score[0]
        for item in place("llmd_weighted", VIEWS, options=options).prefill_side.candidates()
    ]
    assert scores == pytest.approx([-(0 + 4 * 0.995), -(2 + 4 * 0.75)])


def test_an_unknown_scorer_is_named() -> None:
    with pytest.raises(ValueError, match=r"'luck'.*there are: queue"):
        make_policy("llmd_weighted", RoutingOptions(weights={"luck": 1.0}))


loads = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**6))


@pytest.mark.medium
@given(st.lists(loads, min_size=1, max_size=6), st.integers(0, 10**6))
def test_every_score_is_between_zero_and_one(
    members: list[tuple[int, int, int]], capacity: int
) -> None:
    views = [
        engine(f"p{i}", requests=r, running=run, tokens=t, kv_capacity_tokens=capacity)
        for i, (r, run, t) in enumerate(members)
    ]
    snapshot = snapshot_of(views)
    case = make_case(request(100, cached_tokens=60), snapshot, known(), RoutingOptions(), 0)
    for scorer in SCORERS.values():
        scores = scorer(case, snapshot.prefill, np.arange(len(views)))
        assert ((scores >= 0) & (scores <= 1)).all()
