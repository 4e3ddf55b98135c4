"""Prefill groups: lockstep, packing, order, prefixes that are on their way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simulator.engines.prefill import PrefillGroup, PrefillJob
from simulator.hardware.cost import Chunk


class Milliseconds:
    """One millisecond per row of the fullest rank."""

    def prefill_step_s(self, ranks: Sequence[Sequence[Chunk]]) -> float:
        return max(sum(chunk.q for chunk in chunks) for chunks in ranks) / 1000


def group(ranks: int = 2, chunk: int = 100) -> PrefillGroup:
    return PrefillGroup(Milliseconds(), num_ranks=ranks, chunk_tokens=chunk)  # type: ignore[arg-type]


def job(key: int, tokens: int, *, cached: int = 0, ready: float = 0.0) -> PrefillJob:
    return PrefillJob(key=key, prompt_tokens=tokens, done_tokens=cached, ready_at=ready)


def run(found: PrefillGroup, now: float = 0.0) -> dict[int, float]:
    """Runs dry; returns when each prompt was done."""
    done = {}
    for _ in range(100):
        at = found.begin(now)
        if at is None:
            return done
        now = at
        if found.ends_at is not None:
            done |= {p.job.key: now for p in found.end(now) if p.is_done}
    raise AssertionError("does not run dry")


def test_a_prompt_goes_in_chunks() -> None:
    found = group()
    found.add(0, job(1, 250))
    assert run(found) == {1: pytest.approx(0.25)}
    assert found.num_steps == 3


def test_short_prompts_share_a_step_and_its_time() -> None:
    found = group(ranks=1)
    jobs = [job(1, 30), job(2, 50), job(3, 60)]
    for each in jobs:
        found.add(0, each)
    assert run(found) == {1: 0.1, 2: 0.1, 3: pytest.approx(0.14)}
    assert [each.compute_s for each in jobs] == pytest.approx([0.03, 0.05, 0.06])


def test_ranks_step_together() -> None:
    found = group()
    short = job(2, 10)
    found.add(0, job(1, 200))
    found.add(1, short)
    assert run(found) == {1: 0.2, 2: 0.1}
    assert short.compute_s == 0.1  # its rank had nothing else, and waited for its peer
    assert found.busy_share(0.2) == pytest.approx((0.2 + 0.1) / 0.4)


def test_what_arrives_during_a_step_waits_for_the_next() -> None:
    found = group(ranks=1)
    found.add(0, job(1, 100))
    assert found.begin(0.0) == 0.1
    found.add(0, job(2, 10))
    assert found.begin(0.05) == 0.1
    assert [p.job.key for p in found.end(0.1)] == [1]
    assert run(found, 0.1) == {2: pytest.approx(0.11)}


def test_a_prompt_whose_prefix_is_on_its_way_is_passed_over() -> None:
    found = group(ranks=1)
    found.add(0, job(1, 60, cached=20, ready=5.0))
    found.add(0, job(2, 10))
    assert run(found) == {2: 0.01, 1: 5.04}


def test_load_counts_what_is_left() -> None:
    found = group(ranks=1)
    found.add(0, job(1, 250, cached=30))
    found.add(0, job(2, 40))
    assert found.load(0) == (0, 2, 260)
    found.begin(0.0)
    assert found.load(0) == (1, 1, 260)
    found.end(0.1)
    assert found.load(0) == (0, 2, 160)


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="chunk_tokens 0"):
        group(chunk=0)
