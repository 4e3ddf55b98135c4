"""Bounded running, bounded waiting: rules one by one, then any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
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
