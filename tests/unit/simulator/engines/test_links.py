"""Bandwidth with a queue."""

from __future__ import annotations

import math

import pytest

from simulator.engines.links import Link, through


def test_transfers_queue_in_order() -> None:
    link = Link(100.0)
    assert link.send(50, 1.0) == 1.5
    assert link.send(100, 1.0) == 2.5
    assert link.wait_s(2.0) == 0.5
    assert link.send(10, 5.0) == 5.1
    assert (link.num_bytes, link.queued_s) == (160, 0.5)
    assert link.busy_s == pytest.approx(1.6)


def test_the_slowest_link_decides() -> None:
    assert through(100, 2.0, Link(100.0), Link(50.0)) == 4.0
    assert through(100, 2.0, Link(math.inf)) == 2.0
    assert through(100, 2.0) == 2.0


def test_a_link_carries_something() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Link(0.0)
