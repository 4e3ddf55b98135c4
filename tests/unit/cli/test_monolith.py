"""The whole model in one process, against the bundled golden file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.golden import load_golden
from cli.monolith import run_cases, run_cases_on_ranks
from engine.parallel.layout import parse_layout

pytestmark = pytest.mark.medium
MODEL = Path(__file__).parents[3] / "models" / "tiny-v4"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_golden_prompts_are_equal_at_any_concurrency(concurrency: int) -> None:
    cases = load_golden(MODEL / "golden.json").cases[:3]
    done: list[None] = []
    comparisons = run_cases(
        MODEL,
        cases,
        kv_quantisers="off",
        concurrency=concurrency,
        timeout_s=60.0,
        on_done=lambda: done.append(None),
    )
    assert [item.case for item in comparisons] == list(cases)
    assert all(item.is_equal for item in comparisons)
    assert len(done) == 3


def test_moving_experts_changes_no_token() -> None:
    cases = load_golden(MODEL / "golden.json").cases[:3]
    moves: list[tuple[int, int]] = []
    comparisons = run_cases(
        MODEL,
        cases,
        kv_quantisers="off",
        concurrency=3,
        timeout_s=60.0,
        on_done=lambda: None,
        redundant=3,
        rebalance_after=5,
        on_moves=lambda *told: moves.append(told),
    )
    assert all(item.is_equal for item in comparisons)
    [(count, changed_slots)] = moves
    assert count >= 8
    assert changed_slots > 0


def test_time_is_bounded() -> None:
    cases = load_golden(MODEL / "golden.json").cases
    with pytest.raises(TimeoutError):
        run_cases(
            MODEL,
            cases,
            kv_quantisers="off",
            concurrency=20,
            timeout_s=0.05,
            on_done=lambda: None,
        )


def test_a_directory_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError):
        run_cases(
            tmp_path, (), kv_quantisers="off", concurrency=1, timeout_s=1.0, on_done=lambda: None
        )


@pytest.mark.timeout(120)
def test_golden_prompts_on_rank_processes() -> None:
    cases = load_golden(MODEL / "golden.json").cases[:3]
    done: list[None] = []
    moves: list[tuple[int, int]] = []
    comparisons = run_cases_on_ranks(
        MODEL,
        cases,
        parse_layout("dp=1,cp=2"),
        kv_quantisers="off",
        concurrency=3,
        timeout_s=60.0,
        on_done=lambda: done.append(None),
        redundant=2,
        rebalance_after=6,
        on_moves=lambda *told: moves.append(told),
    )
    assert [item.case for item in comparisons] == list(cases)
    assert all(item.is_equal for item in comparisons)
    assert len(done) == 3
    [(count, changed_slots)] = moves
    assert count >= 8
    assert changed_slots > 0


@pytest.mark.timeout(120)
def test_time_is_bounded_on_rank_processes() -> None:
    cases = load_golden(MODEL / "golden.json").cases
    with pytest.raises(TimeoutError):
        run_cases_on_ranks(
            MODEL,
            cases,
            parse_layout("dp=2"),
            kv_quantisers="off",
            concurrency=20,
            timeout_s=0.05,
            on_done=lambda: None,
        )
