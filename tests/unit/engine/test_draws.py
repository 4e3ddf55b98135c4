"""The counter-based generator against the published vectors, and its use as uniform draws."""

from __future__ import annotations

import pytest

from engine.draws import draw_below, philox4x32

FULL = 0xFFFFFFFF

# Known answers of philox4x32-10 distributed with Random123 (kat_vectors).
VECTORS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (FULL, FULL, FULL, FULL),
        (FULL, FULL),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == words


def test_key_and_counter_are_filled_as_documented() -> None:
    seed, position = 0x299F31D0A4093822, 0x85A308D3243F6A88
    low, high, _, _ = philox4x32((0x243F6A88, 0x85A308D3, 0, 0), (0xA4093822, 0x299F31D0))
    assert draw_below(2**64, seed, position) == high << 32 | low


def test_seed_position_and_stream_all_matter_and_nothing_else() -> None:
    draws = {
        (seed, position, stream): draw_below(2**64, seed, position, stream)
        for seed in (0, 1, 2**32, 2**63, 2**64 - 1)
        for position in (0, 1, 2**32)
        for stream in (0, 1)
    }
    assert len(set(draws.values())) == len(draws)
    for (seed, position, stream), value in reversed(draws.items()):
        assert draw_below(2**64, seed, position, stream) == value


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 2**49 + 1, 2**64])
def test_draws_stay_below_the_bound_and_reach_all_of_it(bound: int) -> None:
    draws = [draw_below(bound, 11, position) for position in range(400)]
    assert min(draws) >= 0
    assert max(draws) < bound
    # Six standard deviations of the mean of 400 uniform draws.
    assert abs(sum(draws) / 400 - (bound - 1) / 2) <= 6 * bound / (12 * 400) ** 0.5
    if bound <= 10:
        assert set(draws) == set(range(bound))
