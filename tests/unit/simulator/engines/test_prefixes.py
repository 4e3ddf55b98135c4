"""Content of prefix caches: matches, states, eviction."""

from __future__ import annotations

import math

import pytest

from simulator.engines.prefixes import PrefixCache


def cache(capacity: float = math.inf, state: float = 0.0, every: int = 1) -> PrefixCache:
    return PrefixCache(
        capacity_bytes=capacity, block_bytes=10.0, state_bytes=state, state_every=every
    )


def test_a_match_ends_at_the_first_strange_block() -> None:
    held = cache()
    assert held.store((1, 2, 3, 4), 4 * 512) == 40.0
    assert held.matched_tokens((1, 2, 9, 4), 4 * 512) == 1024
    assert held.matched_tokens((9, 2, 3, 4), 4 * 512) == 0
    held.check_integrity()


def test_one_token_stays_to_compute() -> None:
    held = cache()
    held.store((1, 2), 1024)
    assert held.matched_tokens((1, 2), 1024) == 512
    assert held.matched_tokens((1, 2, 3), 1025) == 1024


def test_only_full_blocks_are_stored() -> None:
    held = cache()
    held.store((1, 2, 3), 1100)
    assert len(held) == 2


def test_windows_resume_where_a_state_is_stored() -> None:
    held = cache(state=5.0, every=2)
    held.store((1, 2, 3, 4, 5), 5 * 512)
    assert held.used_bytes == 5 * 10 + 3 * 5  # states after blocks 2, 4 and the last, 5
    assert held.matched_tokens((1, 2, 3, 9), 4 * 512) == 1024
    assert held.matched_tokens((1, 2, 3, 4, 5, 6), 6 * 512) == 5 * 512
    assert held.loaded_bytes(1024) == 25.0
    assert held.loaded_bytes(0) == 0.0
    held.check_integrity()


def test_the_least_recently_used_goes_first() -> None:
    held = cache(capacity=40.0)
    held.store((1, 2), 1024)
    held.store((3, 4), 1024)
    held.touch((1, 2), 1024)
    held.store((5, 6), 1024)
    assert held.matched_tokens((1, 2, 0), 1100) == 1024
    assert held.matched_tokens((3, 4, 0), 1100) == 0
    assert held.evicted_blocks == 2
    held.check_integrity()


def test_storing_again_costs_nothing_new() -> None:
    held = cache(state=5.0, every=2)
    held.store((1, 2, 3), 3 * 512)
    assert held.store((1, 2, 3), 3 * 512) == 0.0
    assert held.store((1, 2, 3, 4), 4 * 512) == 15.0
    held.check_integrity()


def test_a_cache_without_room_holds_nothing() -> None:
    held = cache(capacity=0.0)
    held.store((1, 2), 1024)
    assert len(held) == 0
    assert held.used_bytes == 0.0


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"block_bytes 0\.0"):
        PrefixCache(capacity_bytes=1.0, block_bytes=0.0)
