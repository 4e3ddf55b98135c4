"""The policies of the Mooncake paper."""

from __future__ import annotations

import pytest

from balancer.membership.members import ExclusionCause
from balancer.routing.base import Verdict
from balancer.routing.options import RoutingOptions
from tests.fakes.placements import engine, place, request, sink

# A token costs 0.1 ms: the prompt of 20,000 takes 2 s, with p1's prefix of 15,000 it takes 0.5 s.
PROMPT = request(20_000, local_cached={"p1": 15_000, "p2": 5_000})


def cluster(p0: float, p1: float, p2: float) -> list:
    waits = (p0, p1, p2)
    return [*(engine(f"p{i}", wait_s=wait) for i, wait in enumerate(waits)), sink()]


def test_load_balance_looks_at_queues_only() -> None:
    assert place("load_balance", cluster(0.1, 0.2, 0.3), PROMPT).prefill_id == "p0"


def test_local_weighs_the_queue_against_ones_own_prefix() -> None:
    # 0.1 + 2.0, 1.0 + 0.5, 0.3 + 1.5
    placement = place("local_cache_aware", cluster(0.1, 1.0, 0.3), PROMPT)
    assert placement.prefill_id == "p1"
    assert placement.quota_s == pytest.approx(0.5)
    scores = [item.score[0] for item in placement.prefill_side.candidates()]
    assert scores == pytest.approx([2.1, 1.5, 1.8])
    assert place("local_cache_aware", cluster(0.1, 1.8, 0.3), PROMPT).prefill_id == "p2"


def test_global_brings_the_best_prefix_over_where_that_pays() -> None:
    cheap = RoutingOptions(transfer_s_per_token=1e-5)
    placement = place("global_cache_aware", cluster(0.1, 1.0, 0.3), PROMPT, options=cheap)
    # 0.1 + 0.5 + 0.15 of transfer
    assert placement.prefill_id == "p0"
    assert placement.quota_s == pytest.approx(0.65)
    dear = RoutingOptions(transfer_s_per_token=1.0)
    assert place("global_cache_aware", cluster(0.1, 1.0, 0.3), PROMPT, options=dear) == place(
        "global_cache_aware", cluster(0.1, 1.0, 0.3), PROMPT, options=dear
    )
    assert (
        place("global_cache_aware", cluster(0.1, 1.0, 0.3), PROMPT, options=dear).prefill_id == "p1"
    )


def test_mooncake_refuses_what_would_be_late() -> None:
    options = RoutingOptions(ttft_slo_s=1.0, ttft_slo_per_token_s=0.0)
    wanted = request(20_000, cached_tokens=15_000)
    placed = place("mooncake", cluster(0.4, 9.0, 9.0), wanted, options=options)
    assert placed.prefill_id == "p0"
    causes = {item.member_id: item.cause for item in placed.exclusions}
    assert causes == {"p1": ExclusionCause.TOO_SLOW, "p2": ExclusionCause.TOO_SLOW}
    late = place("mooncake", cluster(0.6, 9.0, 9.0), wanted, options=options)
    assert late.verdict is Verdict.REJECT
    assert late.retry_after_s == pytest.approx(0.6)
    promised = request(20_000, cached_tokens=15_000, ttft_slo_s=2.0)
    assert place("mooncake", cluster(0.6, 9.0, 9.0), promised, options=options).prefill_id == "p0"


def test_mooncake_keeps_decode_steps_short() -> None:
    options = RoutingOptions(step_s=0.01, step_s_per_request=0.01, tpot_slo_s=0.045)
    views = [engine("p0"), sink("d0", requests=3, max_running=9), sink("d1", requests=2)]
    assert place("mooncake", views, options=options).decode_id == "d1"
    rejected = place("mooncake", views[:2], options=options)
    assert rejected.verdict is Verdict.REJECT
    assert "every decode member would miss" in rejected.reason
