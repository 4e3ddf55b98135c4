"""Runs step plans in place, or on a thread of its own while the engine does other work.

Late scheduling: while step t runs, the engine thread reports step t - 1, votes for step t + 1,
chooses its rows and takes pages for them. A row of t + 1 may stand for a token that t has not yet
yielded (see `Sequence.num_promised`); it is filled in, or dropped if its sequence has ended, when t
is over, and only then t + 1 begins.

    engine thread    report t-1 | vote, schedule t+1 | wait | sample t, move state, plan t+1 | ...
    runner thread    ---- step t ------------------------->                              -- step t+1

Invariants:
- One step at a time is in flight, and nothing else uses the runner meanwhile: state is moved
  between two steps only. So pages given back during a step are not written before it has ended.
- Votes and the step's own collectives use different channels, each from one thread at a time; so a
  rank that schedules late and one that does not (this step) meet in the same collectives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.plan import Runner, StepPlan, StepResult
from engine.schedule import Row


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was started; `wait` returns its result, or raises what the runner raised."""

    plan: StepPlan
    rows: Sequence[Row]
    wait: Callable[[], StepResult]


class StepLauncher:
    """Starts steps. Engine thread.

    Args:
        runner: executes plans.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread: ThreadPoolExecutor | None = None

    def run(self, plan: StepPlan, rows: Sequence[Row]) -> StepInFlight:
        """Runs a step in place."""
        result = self._runner.run(plan)
        return StepInFlight(plan, rows, lambda: result)

    def launch(self, plan: StepPlan, rows: Sequence[Row]) -> StepInFlight:
        """Starts a step on the runner's thread; it must be waited for before anything else.

        Returns when the step has begun: a thread that only wants to begin does not get the
        interpreter lock while another computes, so the step would begin when there is nothing left
        to do beside it.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine-runner")
        has_begun = threading.Lock()
        has_begun.acquire()

        def run() -> StepResult:
            has_begun.release()
            return self._runner.run(plan)

        future = self._thread.submit(run)
        has_begun.acquire()
        return StepInFlight(plan, rows, future.result)

    def close(self) -> None:
        """Lets the thread end once its step is over, without waiting. Twice is harmless."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
