"""The policies everybody knows."""

from __future__ import annotations

from collections import Counter

import pytest

from balancer.routing.simple import SIMPLE_NAMES
from tests.fakes.placements import engine, place, request, sink

VIEWS = [
    engine("p0", requests=3, tokens=10),
    engine("p1", requests=1, tokens=90),
    engine("p2", requests=2, tokens=50),
    sink("d0", requests=5, tokens=10),
    sink("d1", requests=4, tokens=90),
]


def test_round_robin_gives_everybody_a_turn() -> None:
    pairs = [place("round_robin", VIEWS, rotation=i) for i in range(6)]
    assert [p.prefill_id for p in pairs] == ["p0", "p1", "p2"] * 2
    assert [p.decode_id for p in pairs] == ["d0", "d1"] * 3


@pytest.mark.parametrize(
    ("name", "pair"), [("least_requests", ("p1", "d1")), ("least_tokens", ("p0", "d0"))]
)
def test_the_least_wins(name: str, pair: tuple[str, str]) -> None:
    placement = place(name, VIEWS)
    assert (placement.prefill_id, placement.decode_id) == pair


@pytest.mark.medium
def test_random_is_even_and_repeatable() -> None:
    requests = [request(request_id=f"r{i}") for i in range(300)]
    chosen = [place("random", VIEWS, item).prefill_id for item in requests]
    assert chosen == [place("random", VIEWS, item).prefill_id for item in requests]
    assert max(abs(count - 100) for count in Counter(chosen).values()) < 45


def test_of_two_drawn_members_the_better_one_wins() -> None:
    chosen = Counter(
        place("power_of_two", VIEWS, request(request_id=f"r{i}")).prefill_id for i in range(300)
    )
    # The worst of three never wins a draw of two; the best wins two of the three pairs.
    assert chosen.keys() == {"p1", "p2"}
    assert abs(chosen["p1"] - 200) < 45


@pytest.mark.parametrize("name", SIMPLE_NAMES)
def test_all_pass_over_full_decode_members(name: str) -> None:
    views = [engine("p0"), sink("d0", max_running=1, requests=1), sink("d1", requests=9, tokens=99)]
    for rotation in range(3):
        assert place(name, views, rotation=rotation).decode_id == "d1"
