"""Gauges of length classes: names, rounds, what is on its way, imbalance."""

from __future__ import annotations

import pytest

from balancer.journey.tiers import Tiers, imbalance, tier_names
from balancer.membership.members import ExclusionCause
from balancer.membership.snapshot import snapshot_of
from balancer.routing.shares import Shares
from runtime.metrics import Metrics
from tests.fakes.memberships import view

IDLE = snapshot_of([]).decode
K = 1024


def test_the_default_classes_have_their_public_names() -> None:
    names = tier_names((16 * K, 64 * K, 256 * K))
    assert names == ("lt16k", "16k_64k", "64k_256k", "ge256k")
    assert tier_names((100,)) == ("lt100", "ge100")
    assert tier_names(()) == ("all",)


def test_a_prompt_as_long_as_a_boundary_is_in_the_upper_tier() -> None:
    tiers = Tiers((100, 200), 5.0)
    assert [tiers.class_of(n) for n in (99, 100, 199, 200)] == [0, 1, 1, 2]


def test_backlog_is_what_is_not_over_and_quota_the_last_round() -> None:
    tiers, metrics = Tiers((100,), 5.0), Metrics()
    tiers.begin("a#1", 0, 50, 10.0)
    tiers.begin("b#1", 1, 500, 11.0)
    tiers.end("a#1")
    tiers.end("a#1")
    tiers.publish(metrics, None, IDLE, 12.0)
    assert metrics.value("disagg_tier_backlog_tokens", tier="lt100") == 0
    assert metrics.value("disagg_tier_backlog_tokens", tier="ge100") == 500
    assert metrics.value("disagg_tier_quota_tokens", tier="ge100") == 0  # the round is not over
    tiers.publish(metrics, None, IDLE, 15.5)
    assert metrics.value("disagg_tier_quota_tokens", tier="lt100") == 50
    assert metrics.value("disagg_tier_quota_tokens", tier="ge100") == 500
    tiers.publish(metrics, None, IDLE, 31.0)  # rounds without work went by
    assert metrics.value("disagg_tier_quota_tokens", tier="ge100") == 0
    assert metrics.value("disagg_tier_backlog_tokens", tier="ge100") == 500


def test_engines_are_counted_if_the_policy_shares_them_out() -> None:
    tiers, metrics = Tiers((100,), 5.0), Metrics()
    tiers.publish(metrics, None, IDLE, 0.0)
    assert "disagg_tier_engines{tier=lt100}" not in metrics.snapshot()
    tiers.publish(metrics, Shares(class_of={"p0": 1, "p1": 1}), IDLE, 0.0)
    assert metrics.value("disagg_tier_engines", tier="lt100") == 0
    assert metrics.value("disagg_tier_engines", tier="ge100") == 2


def test_imbalance_is_largest_over_mean_of_those_that_take_work() -> None:
    ranks = [view("d0", requests=3, tokens=100), view("d1", requests=1, tokens=100)]
    away = view("d2", requests=9, tokens=900, exclusion=ExclusionCause.DRAINING)
    assert imbalance(snapshot_of([*ranks, away]).decode) == pytest.approx(
        {"requests": 1.5, "kv_tokens": 1.0}
    )
    assert imbalance(IDLE) == {"requests": 1.0, "kv_tokens": 1.0}
