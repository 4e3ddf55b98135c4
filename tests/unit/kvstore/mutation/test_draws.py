"""Draws follow from the seed, stay in range and reach every value."""

import pytest

from kvstore.mutation.draws import Draws


def test_the_same_seed_draws_the_same() -> None:
    assert [Draws(1).raw(4), Draws(1).below(1000)] == [Draws(1).raw(4), Draws(1).below(1000)]
    assert Draws(1).raw(16) != Draws(2).raw(16)
    draws = Draws(1)
    assert draws.raw(16) != draws.raw(16)


def test_every_value_is_reached_and_none_beyond() -> None:
    draws = Draws(3)
    assert {draws.below(5) for _ in range(200)} == set(range(5))
    assert {draws.choice("abc") for _ in range(100)} == set("abc")
    with pytest.raises(ValueError, match="below 0"):
        draws.below(0)


def test_samples_hold_different_items() -> None:
    draws = Draws(4)
    seen = {tuple(draws.sample("abc", 2)) for _ in range(200)}
    assert seen == {("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")}
