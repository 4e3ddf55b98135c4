"""Clocks and the source of randomness."""

import pytest

from runtime.clock import ManualClock, SystemClock, system_random


def test_the_system_clock_does_not_go_back() -> None:
    clock = SystemClock()
    readings = [clock.now() for _ in range(100)]
    assert readings == sorted(readings)
    assert clock.wall() > 1_600_000_000


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now=5.0, wall=100.0)
    assert (clock.now(), clock.wall()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (7.5, 102.5)


def test_a_manual_clock_refuses_to_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        ManualClock().advance(-1)


def test_seeded_sources_agree_and_stay_in_range() -> None:
    first, second = system_random(7), system_random(7)
    numbers = [first.random() for _ in range(50)]
    assert numbers == [second.random() for _ in range(50)]
    assert all(0 <= number < 1 for number in numbers)
