"""What every policy learns: cost and output length."""

from __future__ import annotations

import pytest

from balancer.routing import estimates
from balancer.routing.base import FOREVER
from balancer.routing.estimates import Estimates
from balancer.routing.events import Decided, Finished, PrefillEnded
from balancer.routing.options import RoutingOptions


def decided(name: str = "r", length_class: int = 0) -> Decided:
    return Decided(
        request_id=name,
        at=0.0,
        num_tokens=1000,
        cached_tokens=200,
        length_class=length_class,
        quota_s=0.1,
        prefill_id="p0",
        decode_id="d0",
    )


def make() -> Estimates:
    return Estimates(RoutingOptions(boundaries=(2000,), first_output_tokens=64.0))


def test_a_measured_prefill_changes_the_cost() -> None:
    memory = make()
    before = memory.knowledge()
    assert memory.knowledge() is before  # shared until something changes
    memory.observe(decided())
    memory.observe(PrefillEnded(request_id="r", at=1.0, compute_s=2.0))
    assert memory.knowledge().quota.seconds(1000, 200) == pytest.approx(2.0, rel=0.1)


def test_what_was_really_cached_counts() -> None:
    as_expected, more = make(), make()
    for memory, cached in ((as_expected, None), (more, 900)):
        memory.observe(decided())
        memory.observe(PrefillEnded(request_id="r", at=1.0, compute_s=2.0, cached_tokens=cached))
    costs = [memory.knowledge().quota.seconds(1000, 0) for memory in (as_expected, more)]
    assert costs[1] > 2 * costs[0]


def test_output_lengths_are_averaged_per_class() -> None:
    memory = make()
    for name, length_class, tokens in (("a", 0, 10), ("b", 0, 20), ("c", 1, 500), ("d", 1, None)):
        memory.observe(decided(name, length_class))
        memory.observe(Finished(request_id=name, at=1.0, output_tokens=tokens))
    assert memory.knowledge().output_tokens == (15.0, 500.0)


def test_the_latest_answers_count_most() -> None:
    memory = make()
    for number in range(300):
        memory.observe(decided(str(number)))
        memory.observe(Finished(request_id=str(number), at=0.0, output_tokens=1000))
    for number in range(60):
        memory.observe(decided(f"new-{number}"))
        memory.observe(Finished(request_id=f"new-{number}", at=0.0, output_tokens=10))
    assert memory.knowledge().output_tokens[0] < 70


def test_unknown_and_repeated_ends_change_nothing() -> None:
    memory = make()
    before = memory.knowledge()
    memory.observe(Finished(request_id="unknown", at=0.0, output_tokens=9))
    memory.observe(PrefillEnded(request_id="unknown", at=0.0, compute_s=9.0))
    memory.observe(decided())
    memory.observe(PrefillEnded(request_id="r", at=0.0))
    assert memory.knowledge() is before
    assert memory.next_round_at(0.0) == FOREVER


def test_the_ledger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "_MAX_OPEN", 2)
    memory = make()
    for name in ("a", "b", "a", "c"):
        memory.observe(decided(name))
    assert memory.open_request("b") is None
    assert memory.open_request("a") is not None
