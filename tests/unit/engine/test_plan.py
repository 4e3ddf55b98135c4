"""Plans count their rows; the module loads no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.plan import SequenceStep, StepKind, StepPlan, placeholder_plan


def step(start: int, length: int, sample: bool) -> SequenceStep:
    return SequenceStep(
        request_id="a",
        token_ids=tuple(range(length)),
        start=start,
        block_table=(1, 2),
        state_slot=1,
        sample=sample,
    )


def test_a_plan_counts_rows_and_samples() -> None:
    sequences = (step(0, 5, False), step(7, 1, True), step(2, 3, True))
    plan = StepPlan(kind=StepKind.DECODE, step=3, sequences=sequences, is_placeholder=False)
    assert (plan.num_tokens, plan.num_samples) == (9, 2)
    assert [s.end for s in sequences] == [5, 8, 5]


def test_a_placeholder_has_no_rows() -> None:
    plan = placeholder_plan(StepKind.PREFILL, 9)
    assert plan.is_placeholder
    assert (plan.step, plan.num_tokens, plan.num_samples) == (9, 0, 0)


@pytest.mark.medium
@pytest.mark.parametrize("module", ["engine.plan", "engine.scheduler", "engine.block_manager"])
def test_decisions_load_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    paths = [path for path in sys.path if path]
    script = f"import sys; sys.path[:] = {paths!r}; {code}"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
