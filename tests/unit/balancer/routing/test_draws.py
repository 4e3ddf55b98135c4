"""Draws: the same for the same decision, even over members, fixed per member."""

from __future__ import annotations

import numpy as np

from balancer.membership.snapshot import snapshot_of
from balancer.routing.draws import draw_seed, two_of, uniforms
from tests.fakes.placements import engine

COLUMNS = snapshot_of([engine(f"p{i}") for i in range(8)]).prefill
ROWS = np.arange(8)


def test_seeds_differ_by_all_that_makes_a_decision() -> None:
    seeds = {
        draw_seed(salt, name, attempt, rotation)
        for salt in ("", "b1")
        for name in ("r", "s")
        for attempt in (1, 2)
        for rotation in (0, 1)
    }
    assert len(seeds) == 16
    assert draw_seed("b", "r", 1, 3) == draw_seed("b", "r", 1, 3)


def test_draws_are_uniform() -> None:
    draws = np.concatenate(
        [uniforms(draw_seed("", f"r{i}", 1, 0), COLUMNS, ROWS) for i in range(500)]
    )
    assert ((draws >= 0) & (draws < 1)).all()
    # 4,000 draws in ten bins of 400: five standard deviations are 95.
    counts, _ = np.histogram(draws, bins=10, range=(0, 1))
    assert abs(counts - 400).max() < 95


def test_a_member_keeps_its_draw_when_others_leave() -> None:
    all_rows, some = uniforms(7, COLUMNS, ROWS), uniforms(7, COLUMNS, np.array([2, 5]))
    assert np.array_equal(all_rows[[2, 5]], some)


def test_two_of_the_pool_are_drawn_evenly() -> None:
    counts = np.zeros(8)
    for number in range(600):
        drawn = two_of(draw_seed("", f"r{number}", 1, 0), COLUMNS, ROWS, np.array([0, 2, 4]))
        assert (drawn == 0).sum() == 2
        counts += drawn == 0
    assert set(np.flatnonzero(counts)) == {0, 2, 4}
    assert abs(counts[[0, 2, 4]] - 400).max() < 60
