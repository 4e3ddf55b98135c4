"""Several engines in lockstep: kinds agree at every step, idle ranks serve, all leave together."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import numpy as np
import pytest

from engine.config import EngineRole
from engine.engine import EngineFailed, LLMEngine
from engine.kv_connector import InMemoryExport
from engine.parallel.lockstep import IntArray
from engine.plan import StepKind, StepPlan, StepResult
from engine.request import EngineEvent, EngineRequest
from tests.fakes.toy_runner import ToyRunner, expected_tokens
from tests.unit.engine.test_engine import assert_empty, make_engine, request, tokens_of

BOUND_S = 20.0


class Meeting:
    """All ranks bring a value and see those of all; a rank that does not come breaks it."""

    def __init__(self, num_ranks: int) -> None:
        self._barrier = threading.Barrier(num_ranks, timeout=BOUND_S)
        self._values: list[object] = [None] * num_ranks

    def exchange(self, rank: int, value: object) -> list[object]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values

    def leave(self) -> None:
        self._barrier.abort()


class ThreadVote:
    """The vote of ranks that are threads."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self._rank = rank
        self._meeting = meeting

    def reduce_max(self, vector: IntArray) -> IntArray:
        return np.max(self.gather(vector), axis=0)  # type: ignore[no-any-return]

    def gather(self, vector: IntArray) -> IntArray:
        vectors = self._meeting.exchange(self._rank, vector)
        return np.stack(vectors)  # type: ignore[arg-type]

    def wait_for_work(self, timeout_s: float) -> None:
        """The next vote is the meeting point."""

    def ring(self) -> None:
        """The next vote is the meeting point."""


class CollectiveRunner(ToyRunner):
    """Fails unless all ranks run a step of the same kind and number."""

    rank: int
    meeting: Meeting

    def run(self, plan: StepPlan) -> StepResult:
        met = self.meeting.exchange(self.rank, (plan.kind, plan.step))
        assert len(set(met)) == 1, met
        return super().run(plan)


class Group:
    """Runs `num_ranks` engines, each with its own requests, to their common end."""

    def __init__(self, role: EngineRole, num_ranks: int, **settings: int) -> None:
        # Votes and steps are channels of their own: with late scheduling they overlap.
        self.votes, self.meeting = Meeting(num_ranks), Meeting(num_ranks)
        self.engines: list[LLMEngine] = []
        self.runners: list[CollectiveRunner] = []
        self.events: list[list[EngineEvent]] = [[] for _ in range(num_ranks)]
        self.errors: dict[int, BaseException] = {}
        for rank in range(num_ranks):
            engine, runner = make_engine(role=role, rank=rank, num_ranks=num_ranks, **settings)
            runner.__class__ = CollectiveRunner
            assert isinstance(runner, CollectiveRunner)
            runner.rank, runner.meeting = rank, self.meeting
            engine._agreement.vote = ThreadVote(rank, self.votes)
            self.engines.append(engine)
            self.runners.append(runner)

    def run(self, arrive: Callable[[int, int], EngineRequest | None]) -> None:
        """`arrive(rank, round)` gives what comes to a rank in a round, during 30 rounds."""

        def serve(rank: int) -> None:
            engine = self.engines[rank]
            try:
                for number in range(3000):
                    new = arrive(rank, number) if number < 30 else None
                    if new is not None:
                        engine.add(new)
                    if number >= 30 and not engine.has_work():
                        engine.request_stop()
                    self.events[rank] += engine.step()[1]
                    engine.check_integrity()
                    if engine.is_stop_agreed:
                        return
                raise AssertionError("the group does not come to an end")
            except BaseException as error:
                self.errors[rank] = error
                self.votes.leave()
                self.meeting.leave()

        threads = [threading.Thread(target=serve, args=(r,)) for r in range(len(self.engines))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
            assert not thread.is_alive()

    def check(self, asked: dict[int, list[EngineRequest]]) -> None:
        assert self.errors == {}
        for rank, engine in enumerate(self.engines):
            for one in asked.get(rank, []):
                expected = expected_tokens(one.token_ids, one.sampling)
                assert tokens_of(self.events[rank], one.request_id) == expected
            assert_empty(engine.statistics())
        steps = {runner.plans[-1].step if runner.plans else 0 for runner in self.runners}
        assert len(steps) == 1
        kinds = [[plan.kind for plan in runner.plans] for runner in self.runners]
        assert all(row == kinds[0] for row in kinds)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("role", list(EngineRole))
def test_ranks_with_different_loads_stay_in_step(role: EngineRole, late: bool) -> None:
    group = Group(role, 3, num_pages=20, late_scheduling=late)
    asked: dict[int, list[EngineRequest]] = {0: [], 1: []}

    def arrive(rank: int, number: int) -> EngineRequest | None:
        if rank == 2 or number % (3 + 4 * rank):
            return None
        one = request(f"r{number}", 3 + number, rank + number, max_tokens=4 + number % 9)
        asked[rank].append(one)
        return one

    group.run(arrive)
    group.check(asked)
    idle = group.engines[2].statistics()
    assert idle.steps == idle.computed_tokens == idle.generated_tokens == 0
    assert idle.placeholder_steps == len(group.runners[2].plans) > 0
    kinds = {plan.kind for plan in group.runners[2].plans}
    wanted = {
        EngineRole.NORMAL: {StepKind.PREFILL, StepKind.DECODE},
        EngineRole.PREFILL: {StepKind.PREFILL},
        EngineRole.DECODE: {StepKind.DECODE},
    }
    assert kinds == wanted[role]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("pages", [60, 9])
def test_one_gathered_vote_tells_the_rows_of_every_rank(late: bool, pages: int) -> None:
    """Announced rows are equal on all ranks, and no rank brings more, also when memory is short."""
    group = Group(EngineRole.NORMAL, 3, num_pages=pages, late_scheduling=late)
    for engine in group.engines:
        engine._agreement.gathers_rows = True
    asked: dict[int, list[EngineRequest]] = {0: [], 1: []}

    def arrive(rank: int, number: int) -> EngineRequest | None:
        if rank == 2 or number % (2 + rank):
            return None
        one = request(f"r{number}", 3 + number // 2, rank + number, max_tokens=4 + number % 9)
        asked[rank].append(one)
        return one

    group.run(arrive)
    group.check(asked)
    steps = list(zip(*(runner.plans for runner in group.runners), strict=True))
    brought = announced = 0
    for plans in steps:
        (rows,) = {plan.group_rows for plan in plans}
        assert len(rows) == 3
        assert rows[2] == 0
        for plan, most in zip(plans, rows, strict=True):
            assert plan.num_tokens <= most
            brought, announced = brought + plan.num_tokens, announced + most
    # Holes are the exception: steps in which somebody was preempted, or ended while they ran.
    preemptions = sum(engine.statistics().preemptions for engine in group.engines)
    assert (preemptions > 0) is (pages == 9)
    if pages == 60 and not late:
        assert brought == announced
    assert brought > 0.8 * announced


def test_an_idle_group_runs_no_step_and_leaves_together() -> None:
    group = Group(EngineRole.NORMAL, 2)
    group.run(lambda rank, number: None)
    assert group.errors == {}
    assert all(engine.is_stop_agreed for engine in group.engines)
    assert all(runner.plans == [] for runner in group.runners)


def test_a_rank_that_wants_to_leave_serves_until_all_do() -> None:
    group = Group(EngineRole.DECODE, 2)
    late = request("late", 3, max_tokens=60)
    group.run(lambda rank, number: late if (rank, number) == (1, 0) else None)
    group.check({1: [late]})
    assert len(group.runners[0].plans) == 60
    assert all(plan.is_placeholder for plan in group.runners[0].plans)


def test_a_rank_that_fails_does_not_leave_its_peers_waiting() -> None:
    group = Group(EngineRole.NORMAL, 2)
    group.runners[1].fail_run = RuntimeError("device lost")
    # Aborting the barrier stands for the collective's own time-out and abort mark.
    group.run(lambda rank, number: request("a") if number == 0 else None)
    assert isinstance(group.errors[1], EngineFailed)
    assert "rank 1 of 2 failed at step 1" in str(group.errors[1])
    assert isinstance(group.errors[0], EngineFailed)


def test_a_bad_image_on_one_rank_costs_its_request_and_nothing_else() -> None:
    group = Group(EngineRole.DECODE, 2)
    group.runners[0].fail_import = ValueError("wrong length")
    good = request("good", 4, max_tokens=12)
    donor, _ = make_engine()
    export = InMemoryExport(4)
    donor.add(EngineRequest(request_id="d", token_ids=(5, 6, 7), export=export))
    while donor.has_work():
        donor.step()
    bad = EngineRequest(request_id="bad", token_ids=(5, 6, 7, 8), image=export.image())
    first = {0: bad, 1: good}
    group.run(lambda rank, number: first[rank] if number == 0 else None)
    group.check({1: [good]})
    assert group.engines[0].statistics().failed_requests == 1


def test_ranks_with_different_settings_do_not_start() -> None:
    group = Group(EngineRole.DECODE, 2)
    group.engines[1], _ = make_engine(
        role=EngineRole.DECODE, rank=1, num_ranks=2, late_scheduling=True
    )
    group.engines[1]._agreement.vote = ThreadVote(1, group.votes)
    group.run(lambda rank, number: None)
    # Whoever sees it first breaks the meeting of the other.
    texts = [str(group.errors[rank]) for rank in range(2)]
    assert any(re.search(r"late_scheduling is (false|true) on rank [01]", text) for text in texts)
    assert all(runner.plans == [] for runner in group.runners)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_lone_request_at_an_idle_group_waits_for_no_placeholder_step(
    num_ranks: int, late: bool
) -> None:
    group = Group(
        EngineRole.NORMAL,
        num_ranks,
        late_scheduling=late,
        prefill_attempt_interval=70,
        prefill_any_attempt_interval=100,
    )
    alone = request("alone", 9, max_tokens=3)
    group.run(lambda rank, number: alone if (rank, number) == (0, 5) else None)
    group.check({0: [alone]})
    for runner in group.runners:
        assert runner.plans[0].kind is StepKind.PREFILL
        # And its prefill is followed by its own decode steps only.
        assert len(runner.plans) == 3


@pytest.mark.medium
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("attempt", "any_rank"), [(2, 2), (2, 5), (4, 16), (7, 20)])
def test_a_lone_request_at_a_busy_group_waits_for_the_any_interval_at_most(
    attempt: int, any_rank: int, late: bool
) -> None:
    """Whenever it comes before a vote, at most Y decode steps lie between that vote and it."""
    waits = []
    for arrival in range(any_rank + 2):
        group = Group(
            EngineRole.NORMAL,
            2,
            late_scheduling=late,
            prefill_attempt_interval=attempt,
            prefill_any_attempt_interval=any_rank,
        )
        busy = request("busy", 3, 1, max_tokens=3 * any_rank + 30)
        alone = request("alone", 9, 2, max_tokens=2)
        first = {(0, 0): busy, (1, arrival + 1): alone}
        group.run(lambda rank, number, first=first: first.get((rank, number)))  # type: ignore[misc]
        group.check({0: [busy], 1: [alone]})
        kinds = [plan.kind for plan in group.runners[1].plans]
        second = kinds.index(StepKind.PREFILL, 1)
        waits.append(second - 1 - arrival)
    assert max(waits) <= any_rank
    # The other rank never wants a prefill, so only the second interval helps.
    assert max(waits) >= any_rank - 1
