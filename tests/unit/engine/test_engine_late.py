"""LLMEngine with late scheduling: the same tokens, one step in flight, nothing left behind."""

from __future__ import annotations

import threading

import pytest

from engine.config import EngineRole
from engine.engine import EngineFailed
from engine.kv_connector import InMemoryExport
from engine.parallel.lockstep import IntArray
from engine.parallel.votes import LocalVote
from engine.plan import StepKind, StepPlan, StepResult
from engine.request import (
    EngineEvent,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokenOut,
)
from engine.schedule import Preemption, Row, Schedule
from tests.fakes.toy_engine import (
    BLOCK,
    assert_empty,
    drain,
    make_engine,
    prompt_of,
    request,
    tokens_of,
)
from tests.fakes.toy_runner import ToyRunner, expected_tokens
from tests.unit.engine.test_engine import find_eos_prompt

BOUND_S = 10.0


def test_many_requests_under_memory_pressure_give_their_tokens() -> None:
    engine, runner = make_engine(num_pages=12, prefill_attempt_interval=2, late_scheduling=True)
    asked = [request(f"r{i}", 6, i, max_tokens=20, temperature=float(i % 2)) for i in range(4)]
    for one in asked:
        engine.add(one)
    events = drain(engine)
    for one in asked:
        expected = expected_tokens(one.token_ids, one.sampling)
        assert tokens_of(events, one.request_id) == expected
    statistics = engine.statistics()
    assert statistics.preemptions > 0
    assert statistics.computed_tokens == sum(6 + 20 - 1 for _ in asked)
    assert statistics.steps + statistics.placeholder_steps == len(runner.plans)


class Watched(LocalVote):
    """Counts votes, and says when there were more than `limit`."""

    def __init__(self) -> None:
        super().__init__()
        self.num_votes = 0
        self.limit = 10**9
        self.reached = threading.Event()

    def reduce_max(self, vector: IntArray) -> IntArray:
        self.num_votes += 1
        if self.num_votes > self.limit:
            self.reached.set()
        return super().reduce_max(vector)


class GatedRunner(ToyRunner):
    gate: threading.Event

    def run(self, plan: StepPlan) -> StepResult:
        assert self.gate.wait(BOUND_S)
        return super().run(plan)


def test_the_next_step_is_agreed_and_its_pages_are_taken_while_one_runs() -> None:
    engine, runner = make_engine(role=EngineRole.DECODE, late_scheduling=True)
    vote = Watched()
    engine._agreement.vote = vote
    runner.__class__ = GatedRunner
    assert isinstance(runner, GatedRunner)
    runner.gate = threading.Event()
    engine.add(request("a", BLOCK, max_tokens=3))
    engine.step()
    assert runner.plans == []
    vote.limit = vote.num_votes
    free_pages = engine.statistics().free_pages
    stepper = threading.Thread(target=engine.step)
    stepper.start()
    assert vote.reached.wait(BOUND_S)
    # The token of the step in flight opens a new block; its page comes before the token.
    while engine.statistics().free_pages == free_pages:
        assert stepper.is_alive()
    assert runner.plans == []
    runner.gate.set()
    stepper.join(BOUND_S)
    drain(engine)


def test_an_end_that_comes_as_a_surprise_costs_no_row() -> None:
    salt, stopped = find_eos_prompt()
    engine, runner = make_engine(late_scheduling=True)
    asked = request("a", 5, salt, ignore_eos=False, max_tokens=30)
    engine.add(asked)
    assert tokens_of(drain(engine), "a") == stopped
    rows = [step for plan in runner.plans for step in plan.sequences]
    assert len(rows) == len(stopped)
    # The step that was agreed for it ran without it.
    engine.step()
    assert engine.statistics().placeholder_steps == 1


def test_an_end_by_length_is_foreseen() -> None:
    engine, runner = make_engine(late_scheduling=True)
    engine.add(request("a", 5, max_tokens=4))
    events = []
    for _ in range(4):
        events += engine.step()[1]
    decision, last = engine.step()
    assert decision.idle
    assert len(tokens_of(events + last, "a")) == 4
    assert len(runner.plans) == 4
    assert engine.statistics().placeholder_steps == 0


@pytest.mark.parametrize("num_steps", range(1, 8))
def test_an_abort_while_a_step_runs_yields_no_token_and_frees_at_once(num_steps: int) -> None:
    engine, _ = make_engine(late_scheduling=True)
    other = request("other", 7, 3, max_tokens=12)
    engine.add(request("a", 5, max_tokens=20))
    engine.add(other)
    events = []
    for _ in range(num_steps):
        events += engine.step()[1]
    seen = len([e for e in events if isinstance(e, TokenOut) and e.request_id == "a"])
    assert engine.abort("a")
    engine.check_integrity()
    # The same name again, while rows of the old one may still run.
    engine.add(request("a", 9, 5, max_tokens=6))
    rest = drain(engine)
    (ended,) = [e for e in rest if isinstance(e, RequestFinished)]
    assert (ended.finish_reason, ended.num_generated) == ("abort", seen)
    again = request("a", 9, 5, max_tokens=6)
    assert tokens_of(rest, "a") == expected_tokens(again.token_ids, again.sampling)
    assert tokens_of(events + rest, "other") == expected_tokens(other.token_ids, other.sampling)


def test_a_step_whose_state_is_wanted_is_not_late() -> None:
    # A resumed generation whose last given token is computed in a decode step.
    exports = [InMemoryExport(BLOCK, state_every_blocks=1) for _ in range(2)]
    given = prompt_of(2 * BLOCK)
    for export, late in zip(exports, (False, True), strict=True):
        first = InMemoryExport(BLOCK)
        engine, _ = make_engine()
        engine.add(EngineRequest(request_id="p", token_ids=given[:-1], export=first))
        drain(engine)
        engine, _ = make_engine(late_scheduling=late)
        engine.add(
            EngineRequest(
                request_id="a",
                token_ids=given,
                num_generated=1,
                image=first.image(),
                export=export,
                sampling=SamplingParams(max_tokens=9, ignore_eos=True),
            )
        )
        decision, events = engine.step()
        assert decision.step_kind is StepKind.DECODE
        assert len(events) == 1, "its token is out with its own step"
        drain(engine)
    assert exports[0].states
    assert exports[0].blocks == exports[1].blocks
    assert exports[0].states == exports[1].states
    assert exports[0].tail == exports[1].tail


def test_bad_logits_fail_their_request_only() -> None:
    engine, runner = make_engine(late_scheduling=True)
    good = request("good", 9, max_tokens=10)
    engine.add(request("nan", 5))
    engine.add(good)
    events = engine.step()[1] + engine.step()[1]
    runner.bad_rows = {"nan"}
    events += drain(engine)
    (failed,) = [e for e in events if isinstance(e, RequestFailed)]
    assert failed.request_id == "nan"
    assert tokens_of(events, "good") == expected_tokens(good.token_ids, good.sampling)


def test_an_error_in_flight_fails_the_engine_with_the_next_step() -> None:
    engine, runner = make_engine(role=EngineRole.DECODE, late_scheduling=True)
    engine.add(request("a", 1))
    runner.fail_run = RuntimeError("device lost")
    engine.step()
    with pytest.raises(EngineFailed, match="failed at step 1: RuntimeError: device lost"):
        engine.step()


def test_a_stop_waits_for_the_step_in_flight() -> None:
    engine, runner = make_engine(role=EngineRole.DECODE, late_scheduling=True)
    engine.add(request("a", 1))
    engine.step()
    engine.abort("a")
    engine.request_stop()
    engine.step()
    assert engine.is_stop_agreed
    assert len(runner.plans) == 1
    assert_empty(engine.statistics())


def test_state_of_a_sequence_that_ended_meanwhile_is_not_moved() -> None:
    engine, runner = make_engine(late_scheduling=True)
    engine.add(request("a", 5, max_tokens=2))
    engine.step()
    (ended,) = engine._scheduler._queues.running
    drain(engine)
    runner.fail_export = runner.fail_import = RuntimeError("its pages are somebody else's")
    schedule = Schedule(
        preempted=[Preemption(ended, (1, 2), 1, 6)], admitted=[ended], rows=[Row(ended, 1)]
    )
    events: list[EngineEvent] = []
    assert engine._prepare(schedule, events) == []
    assert events == []
