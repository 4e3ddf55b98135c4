"""Bounded running, bounded waiting: rules one by one, then any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from balancer.admission import Admission, Verdict


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="max_running 0"):
        Admission(max_running=0, max_waiting=1)


def test_requests_run_then_wait_then_are_refused() -> None:
    admission = Admission(max_running=1, max_waiting=1)
    assert admission.offer("a", priority=0, now=0.0) is Verdict.RUNNING
    assert admission.offer("b", priority=0, now=0.0) is Verdict.WAITING
    assert admission.offer("c", priority=0, now=0.0) is Verdict.REFUSED
    assert admission.release("a", now=1.0) == ["b"]
    assert admission.release("a", now=1.0) == []
    statistics = admission.statistics()
    assert (statistics.running, statistics.waiting) == (1, 0)
    assert (statistics.admitted, statistics.refused) == (2, 1)


def test_an_id_has_one_place() -> None:
    admission = Admission(max_running=1, max_waiting=1)
    admission.offer("a", priority=0, now=0.0)
    admission.offer("b", priority=0, now=0.0)
    for taken in ("a", "b"):
        with pytest.raises(ValueError, match="has a place already"):
            admission.offer(taken, priority=0, now=0.0)


def test_priority_comes_first_then_arrival() -> None:
    admission = Admission(max_running=1, max_waiting=9)
    admission.offer("running", priority=0, now=0.0)
    for name, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5)):
        admission.offer(name, priority=priority, now=0.0)
    order, running = [], "running"
    for _ in range(4):
        [running] = admission.release(running, now=0.0)
        order.append(running)
    assert order == ["high", "first", "second", "low"]


def test_who_leaves_the_queue_is_not_started() -> None:
    admission = Admission(max_running=1, max_waiting=2)
    for name in ("a", "b", "c"):
        admission.offer(name, priority=0, now=0.0)
    assert admission.withdraw("b")
    assert not admission.withdraw("b")
    assert admission.release("a", now=0.0) == ["c"]


def test_the_hint_grows_with_queue_and_service_time_within_bounds() -> None:
    admission = Admission(max_running=1, max_waiting=1000)
    admission.offer("r0", priority=0, now=0.0)
    short = admission.retry_after_s()
    for number in range(1, 5):
        admission.offer(f"r{number}", priority=0, now=0.0)
    assert admission.retry_after_s() > short
    slow = Admission(max_running=1, max_waiting=0)
    for number in range(100):
        slow.offer(str(number), priority=0, now=100.0 * number)
        slow.release(str(number), now=100.0 * number + 90)
    assert slow.retry_after_s() == 30.0
    for number in range(200, 400):
        slow.offer(str(number), priority=0, now=0.0)
        slow.release(str(number), now=0.0)
    assert slow.retry_after_s() == 0.1


class AdmissionMachine(RuleBasedStateMachine):
    """No order of calls breaks a bound, loses a request or leaves room idle."""

    ids = st.integers(0, 9)

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(max_running=2, max_waiting=3)
        self.running: set[str] = set()
        self.waiting: set[str] = set()

    @rule(request=ids, priority=st.integers(-2, 2))
    def offer(self, request: int, priority: int) -> None:
        name = str(request)
        if name in self.running | self.waiting:
            return
        verdict = self.admission.offer(name, priority=priority, now=0.0)
        if verdict is Verdict.RUNNING:
            self.running.add(name)
        elif verdict is Verdict.WAITING:
            self.waiting.add(name)
        else:
            assert len(self.running) == 2
            assert len(self.waiting) == 3

    @rule(request=ids)
    def release(self, request: int) -> None:
        started = set(self.admission.release(str(request), now=1.0))
        assert started <= self.waiting
        self.running.discard(str(request))
        self.waiting -= started
        self.running |= started

    @rule(request=ids)
    def withdraw(self, request: int) -> None:
        assert self.admission.withdraw(str(request)) == (str(request) in self.waiting)
        self.waiting.discard(str(request))

    @invariant()
    def sizes_match(self) -> None:
        self.admission.check_integrity()
        statistics = self.admission.statistics()
        assert (statistics.running, statistics.waiting) == (len(self.running), len(self.waiting))


AdmissionMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestAdmissionMachine = pytest.mark.medium(AdmissionMachine.TestCase)


def test_a_request_that_cannot_meet_its_deadline_is_refused_at_once() -> None:
    admission = Admission(max_running=1, max_waiting=9)
    late = {"priority": 0, "now": 10.0, "deadline": 12.0}
    assert admission.offer("slow", **late, needs_s=2.1) is Verdict.TOO_LATE
    assert admission.offer("ok", **late, needs_s=1.9) is Verdict.RUNNING
    # One service time (a second, before any was seen) stands before the next one.
    assert admission.forecast_s(0) == 1.0
    assert admission.offer("behind", **late, needs_s=1.1) is Verdict.TOO_LATE
    assert admission.offer("fits", **late, needs_s=0.9) is Verdict.WAITING
    assert admission.retry_after_s(short_by_s=0.1) == 0.1
    assert admission.statistics().too_late == 2


def test_who_became_too_late_while_waiting_is_not_started() -> None:
    admission = Admission(max_running=1, max_waiting=9)
    admission.offer("running", priority=0, now=0.0)
    admission.offer("late", priority=1, now=0.0, deadline=5.0, needs_s=1.0)
    admission.offer("next", priority=0, now=0.0)
    assert admission.release("running", now=4.5) == ["next"]
    assert admission.take_late() == ["late"]
    assert admission.take_late() == []
    assert not admission.withdraw("late")
    admission.check_integrity()


def test_each_class_has_its_own_bound() -> None:
    admission = Admission(max_running=1, max_waiting=3, max_waiting_per_class=2, num_classes=2)
    admission.offer("running", priority=0, now=0.0)
    verdicts = [admission.offer(f"a{i}", priority=0, now=0.0, length_class=0) for i in range(3)]
    assert verdicts == [Verdict.WAITING, Verdict.WAITING, Verdict.REFUSED]
    assert admission.offer("b0", priority=0, now=0.0, length_class=1) is Verdict.WAITING
    assert admission.offer("b1", priority=0, now=0.0, length_class=1) is Verdict.REFUSED
    assert admission.statistics().waiting_by_class == (2, 1)
    with pytest.raises(ValueError, match="max_waiting_per_class 4"):
        Admission(max_running=1, max_waiting=3, max_waiting_per_class=4)


def test_waiting_outweighs_priority_after_a_while() -> None:
    admission = Admission(max_running=1, max_waiting=9, ageing_s=10.0)
    admission.offer("running", priority=0, now=0.0)
    admission.offer("old", priority=0, now=0.0)
    admission.offer("high", priority=1, now=9.0)
    admission.offer("high-but-late", priority=1, now=11.0)
    assert admission.release("running", now=20.0) == ["high"]
    assert admission.release("high", now=20.0) == ["old"]
    assert admission.release("old", now=20.0) == ["high-but-late"]


costs = st.lists(st.integers(1, 100_000), min_size=4, max_size=40)


@settings(max_examples=60)
@given(short=costs, long=costs)
def test_classes_that_wait_are_given_equal_tokens(short: list[int], long: list[int]) -> None:
    """Stated bound: as long as both wait, the difference is at most the largest request."""
    admission = Admission(max_running=1, max_waiting=999, num_classes=2)
    admission.offer("running", priority=0, now=0.0)
    cost_of = {}
    for length_class, wanted in ((0, short), (1, long)):
        for number, cost in enumerate(wanted):
            name = f"{length_class}-{number}"
            cost_of[name] = cost
            admission.offer(
                name, priority=0, now=0.0, length_class=length_class, uncached_tokens=cost
            )
    running, given_tokens = "running", [0, 0]
    while all(admission.statistics().waiting_by_class):
        [running] = admission.release(running, now=0.0)
        given_tokens[int(running[0])] += cost_of[running]
        assert abs(given_tokens[0] - given_tokens[1]) <= max(*short, *long)
