"""Points of the last minutes: far enough apart, bounded, and the rates they give."""

from __future__ import annotations

import pytest

from balancer.ui.history import MAX_POINTS, STEP_S, History, Point, rates


def take(history: History, now: float, quota: list[int], num: int = 0) -> None:
    history.take(now, quota_tokens=quota, num_ended=num, num_tokens=10 * num)


def test_points_are_a_step_apart_however_often_one_asks() -> None:
    history = History()
    for tick in range(17):
        take(history, tick * STEP_S / 4, [1, 3])
    assert [point.at for point in history.points()] == [k * STEP_S for k in range(5)]
    assert {point.shares for point in history.points()} == {(0.25, 0.75)}


def test_a_round_without_work_has_no_shares() -> None:
    history = History()
    take(history, 0.0, [0, 0])
    assert history.points()[0].shares == (0.0, 0.0)


def test_only_the_last_minutes_are_kept() -> None:
    history = History()
    for step in range(MAX_POINTS + 10):
        take(history, step * STEP_S, [1])
    assert len(history.points()) == MAX_POINTS
    assert history.points()[0].at == 10 * STEP_S


def test_rates_look_twenty_seconds_back() -> None:
    points = [
        Point(at=float(at), shares=(), num_ended=at, num_tokens=10 * at) for at in (0, 50, 60)
    ]
    assert rates(points, 70.0, 80, 900) == pytest.approx((30 / 20, 400 / 20))
    assert rates(points, 60.0, 60, 600) == pytest.approx((1.0, 10.0))
    assert rates([], 70.0, 80, 900) == (0.0, 0.0)
    assert rates(points[-1:], 60.0, 60, 600) == (0.0, 0.0)
