"""Budgets of repetitions."""

from __future__ import annotations

from balancer.journey.retry import Leg, Outage, RequestRetries, RetryBudget, backoff_s


def test_the_minutes_budget_runs_out_and_comes_back() -> None:
    budget = RetryBudget(per_minute=2)
    assert [budget.try_spend("gone", now=0.0) for _ in range(3)] == [True, True, False]
    assert not budget.try_spend("gone", now=29.0)
    assert budget.try_spend("corrupt", now=31.0)
    assert budget.spent == {"gone": 2, "corrupt": 1}
    assert budget.denied == {"gone": 2}


def test_the_budget_never_saves_up_more_than_a_minute() -> None:
    budget = RetryBudget(per_minute=2)
    budget.try_spend("x", now=0.0)
    assert [budget.try_spend("x", now=1e6) for _ in range(3)] == [True, True, False]


def test_a_budget_of_zero_allows_nothing() -> None:
    assert not RetryBudget(0).try_spend("x", now=0.0)


def test_legs_have_budgets_of_their_own() -> None:
    retries = RequestRetries(prefill=1, decode=2)
    assert [retries.try_spend(Leg.PREFILL) for _ in range(2)] == [True, False]
    assert [retries.try_spend(leg) for leg in (Leg.DECODE, Leg.RESERVE, Leg.DECODE)] == [
        True,
        True,
        False,
    ]


def test_taking_over_is_free_once() -> None:
    retries = RequestRetries(prefill=0, decode=0)
    assert [retries.try_take_over() for _ in range(2)] == [True, False]


def test_pauses_double_within_bounds_and_repeat_exactly() -> None:
    pauses = [backoff_s("r1", attempt, first_s=0.1, max_s=0.5) for attempt in range(2, 8)]
    assert pauses == [backoff_s("r1", attempt, first_s=0.1, max_s=0.5) for attempt in range(2, 8)]
    assert all(0.05 <= pause <= 0.5 for pause in pauses)
    assert pauses[1] == 2 * pauses[0]
    assert pauses[4] == pauses[5]
    assert len({backoff_s(f"r{i}", 2, first_s=0.1, max_s=0.5) for i in range(20)}) > 10


def test_waiting_for_what_is_down_costs_nothing_until_the_window_closes() -> None:
    outage = Outage(window_s=10.0)
    assert outage.since is None
    assert all(outage.covers("", now) for now in (5.0, 6.0, 14.9))
    assert outage.since == 5.0
    assert not outage.covers("", 15.0)


def test_a_peer_that_was_lost_costs_once() -> None:
    outage = Outage(window_s=10.0)
    # The first time the request may be the reason; a second peer as well.
    assert [outage.covers("prefill p", 0.0), outage.covers("prefill p", 1.0)] == [False, True]
    assert [outage.covers("prefill q", 2.0), outage.covers("prefill q", 3.0)] == [False, True]
    assert not outage.covers("prefill p", 10.0)


def test_an_outage_ends_with_the_first_progress() -> None:
    outage = Outage(window_s=10.0)
    outage.covers("prefill p", 0.0)
    outage.end()
    assert outage.since is None
    assert not outage.covers("prefill p", 20.0)
    assert outage.since == 20.0
