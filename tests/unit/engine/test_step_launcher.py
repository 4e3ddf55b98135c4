"""Steps in place or beside the caller: which thread runs them, what waiting gives back."""

from __future__ import annotations

import threading

import pytest

from engine.plan import StepKind, StepPlan, StepResult, placeholder_plan
from engine.step_launcher import StepLauncher
from tests.fakes.toy_runner import ToyRunner

BOUND_S = 10.0


class GatedRunner(ToyRunner):
    """Runs no step before its gate is open; notes on which threads steps ran."""

    def __init__(self) -> None:
        super().__init__(4, 4, 4)
        self.gate = threading.Event()
        self.threads: list[threading.Thread] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.threads.append(threading.current_thread())
        assert self.gate.wait(BOUND_S)
        return super().run(plan)


def test_a_launched_step_runs_beside_its_caller() -> None:
    runner = GatedRunner()
    launcher = StepLauncher(runner)
    plan = placeholder_plan(StepKind.DECODE, 1)
    in_flight = launcher.launch(plan, ())
    # The caller goes on although the step cannot.
    assert runner.plans == []
    runner.gate.set()
    assert in_flight.wait().logits.shape[0] == 0
    assert runner.plans == [plan]
    assert in_flight.plan is plan
    second = launcher.launch(placeholder_plan(StepKind.DECODE, 2), ())
    second.wait()
    (thread,) = set(runner.threads)
    assert thread is not threading.current_thread()
    launcher.close()
    launcher.close()
    thread.join(BOUND_S)
    assert not thread.is_alive()


def test_a_step_in_place_runs_on_the_callers_thread() -> None:
    runner = GatedRunner()
    runner.gate.set()
    launcher = StepLauncher(runner)
    in_flight = launcher.run(placeholder_plan(StepKind.PREFILL, 1), ())
    assert runner.threads == [threading.current_thread()]
    assert in_flight.wait() is in_flight.wait()
    launcher.close()


def test_what_the_runner_raises_comes_back() -> None:
    runner = GatedRunner()
    runner.gate.set()
    runner.fail_run = RuntimeError("device lost")
    launcher = StepLauncher(runner)
    in_flight = launcher.launch(placeholder_plan(StepKind.DECODE, 1), ())
    with pytest.raises(RuntimeError, match="device lost"):
        in_flight.wait()
    with pytest.raises(RuntimeError, match="device lost"):
        launcher.run(placeholder_plan(StepKind.DECODE, 2), ())
    launcher.close()
