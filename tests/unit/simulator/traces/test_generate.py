"""The generated workload: seeded, in all classes, with shared prefixes."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.traces.generate import MixSettings, generate_mix

SMALL = MixSettings(num_requests=1500)
TRACE = generate_mix(7, SMALL)


def test_the_seed_decides() -> None:
    assert generate_mix(7, SMALL) == TRACE
    assert generate_mix(8, SMALL) != TRACE
    assert TRACE.is_generated


def test_all_classes_occur() -> None:
    bounds = (16_384, 65_536, 262_144)
    found = Counter(sum(r.prompt_tokens >= b for b in bounds) for r in TRACE.requests)
    assert found[0] > 0.55 * len(TRACE.requests)
    assert found[3] >= 0.01 * len(TRACE.requests)
    assert max(r.prompt_tokens for r in TRACE.requests) <= SMALL.longest


def test_rows_are_those_of_a_trace() -> None:
    last = 0.0
    for request in TRACE.requests:
        assert request.arrived_s > last
        assert len(request.blocks) == -(-request.prompt_tokens // 512)
        assert 1 <= request.output_tokens <= SMALL.max_output
        last = request.arrived_s
    assert TRACE.rate == pytest.approx(SMALL.rate, rel=0.1)


def test_an_id_always_follows_the_same_id() -> None:
    before: dict[int, int] = {}
    shared = 0
    for request in TRACE.requests:
        for earlier, block in zip((-1, *request.blocks), request.blocks, strict=False):
            shared += block in before
            assert before.setdefault(block, earlier) == earlier
    assert shared > 0.1 * len(before)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_requests": 0},
        {"rate": 0.0},
        {"shares": (1.0, 1.0, 1.0)},
        {"shares": (0.0, 0.0, 0.0, 0.0)},
        {"follow_share": 1.0},
        {"longest": 1000},
        {"shortest": 20_000},
    ],
)
def test_settings_that_cannot_be(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        MixSettings(**changes)  # type: ignore[arg-type]
