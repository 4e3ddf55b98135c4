"""The closed form of decode groups, against a loop over every step."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.engines.decode import DecodeGroup


class _Work:
    def read_bytes(self, context: int) -> int:
        return 2 * context


class Linear:
    """10 ms, 1 ms for each row of the rank, 1 us for each byte read."""

    work = _Work()
    read_slope = 2.0

    def decode_step_s(self, rows: float, read_bytes: float, rows_all: int) -> float:
        return max(0.010 + 0.001 * rows, 1e-6 * read_bytes)


def group(ranks: int = 3) -> DecodeGroup:
    return DecodeGroup(Linear(), num_ranks=ranks)  # type: ignore[arg-type]


def drive(joins: list[tuple[float, int, int, int]], ranks: int) -> dict[int, float]:
    """Ends of sequences that join as (when, rank, context, tokens); the key is the place."""
    found, ends, pending = group(ranks), {}, list(enumerate(joins))
    while True:
        at = found.next_end()
        if pending and (at is None or pending[0][1][0] <= at):
            key, (when, rank, context, tokens) = pending.pop(0)
            found.join(key, rank, context=context, tokens=tokens, now=when)
        elif at is None:
            return ends
        else:
            ends |= dict.fromkeys(found.pop_ended(at), at)


def loop(joins: list[tuple[float, int, int, int]], ranks: int) -> dict[int, float]:
    """The same, one step after the other."""
    cost, now, ends = Linear(), 0.0, {}
    left: dict[int, list[int]] = {}
    pending = list(enumerate(joins))
    while pending or left:
        if not left:
            now = max(now, pending[0][1][0])
        while pending and pending[0][1][0] <= now + 1e-12:
            key, (_, rank, context, tokens) = pending.pop(0)
            left[key] = [rank, context, tokens]
        times = []
        for rank in range(ranks):
            own = [item for item in left.values() if item[0] == rank]
            times.append(cost.decode_step_s(len(own), sum(2 * item[1] for item in own), len(left)))
        now += max(times)
        for key in list(left):
            left[key][1] += 1
            left[key][2] -= 1
            if not left[key][2]:
                ends[key] = now
                del left[key]
    return ends


def test_one_sequence_by_hand() -> None:
    # 11 ms a step until reading 2 * 5500 bytes takes as long.
    assert drive([(1.0, 0, 100, 10)], 1) == {0: pytest.approx(1.11)}


@pytest.mark.parametrize("seed", range(6))
def test_joins_and_ends_at_any_time_equal_the_loop(seed: int) -> None:
    draws = np.random.default_rng(seed)
    joins, now = [], 0.0
    for _ in range(40):
        now += float(draws.exponential(0.05))
        joins.append(
            (
                now,
                int(draws.integers(3)),
                int(draws.choice([50, 3000, 20_000])),
                int(draws.integers(1, 60)),
            )
        )
    assert drive(joins, 3) == pytest.approx(loop(joins, 3), rel=0.003)


def test_counts_follow_joins_and_ends() -> None:
    found = group()
    found.join(1, 0, context=100, tokens=5, now=0.0)
    found.join(2, 2, context=300, tokens=50, now=0.0)
    assert found.requests.tolist() == [1, 0, 1]
    end = found.next_end()
    assert end is not None
    assert found.pop_ended(end - 1e-6) == []
    assert found.pop_ended(end) == [1]
    assert found.requests.tolist() == [0, 0, 1]
    assert found.kv_tokens().tolist() == [0, 0, 305]
    assert found.kv_of(2) == 305
    assert sum(spell.tokens for spell in found.spells) == 10
    assert found.busy_s == pytest.approx(end)


def test_the_first_token_comes_after_the_step_in_flight() -> None:
    found = group(1)
    found.join(1, 0, context=10, tokens=100, now=0.0)
    # At 5 ms the first step of 11 ms is under way; two rows take 12 ms.
    assert found.join(2, 0, context=10, tokens=100, now=0.005) == pytest.approx(0.023)


def test_an_idle_group_has_no_next_end() -> None:
    assert group().next_end() is None
