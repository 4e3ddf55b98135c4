"""Sums over visited entries, against counting them one by one."""

from __future__ import annotations

import pytest

from simulator.work.pairs import Visits


@pytest.mark.parametrize("ratio", [1, 2, 4, 128])
@pytest.mark.parametrize("cap", [None, 1, 5, 128])
def test_the_closed_form_counts_what_a_loop_counts(ratio: int, cap: int | None) -> None:
    visits = Visits(flops=1, entry_bytes=1, ratio=ratio, cap=cap)
    for start, end in ((0, 1), (0, 700), (3, 131), (511, 1030)):
        counted = sum(
            t // ratio if cap is None else min(t // ratio, cap) for t in range(start + 1, end + 1)
        )
        assert visits.pairs(start, end) == counted
        assert visits.entries(end) == visits.pairs(end - 1, end)


@pytest.mark.parametrize("cap", [None, 3, 40])
def test_groups_are_visited_whole(cap: int | None) -> None:
    visits = Visits(flops=1, entry_bytes=1, ratio=2, cap=cap, group=8)
    for start, end in ((0, 1), (0, 17), (15, 900)):
        counted = 0
        for t in range(start + 1, end + 1):
            groups = -(-t // 16)
            counted += 8 * (groups if cap is None else min(groups, cap))
        assert visits.pairs(start, end) == counted
        assert visits.entries(end) == visits.pairs(end - 1, end)


def test_an_empty_range_has_no_pairs() -> None:
    assert Visits(flops=1, entry_bytes=1).pairs(7, 7) == 0
    assert Visits(flops=1, entry_bytes=1).pairs(9, 7) == 0
