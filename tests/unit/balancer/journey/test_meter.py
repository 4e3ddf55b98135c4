"""Gaps between tokens, first token, whole duration."""

from __future__ import annotations

import pytest

from balancer.journey.meter import Meter, Targets
from runtime.metrics import Metrics
from tests.unit.balancer.journey.test_endings import journey


def test_tokens_that_come_together_share_their_gap() -> None:
    metrics, made = Metrics(), journey()
    meter = Meter(metrics, lambda num_tokens: f"tier{num_tokens}")
    arrived_at = made.request.arrived_at
    meter.tokens(made, 1, arrived_at + 2.0)
    meter.tokens(made, 4, arrived_at + 4.0)
    meter.tokens(made, 0, arrived_at + 9.0)  # nothing new
    first = "gen_ai_server_time_to_first_token_seconds"
    assert metrics.value(first, tier="tier3", gen_ai_operation_name="text_completion") == 1
    snapshot = metrics.snapshot()
    sums = {name.split("{")[0]: value for name, value in snapshot.items() if "_sum" in name}
    assert sums[f"{first}_sum"] == pytest.approx(2.0)
    assert sums["disagg_inter_token_latency_seconds_sum"] == pytest.approx(0.5)
    assert made.max_gap_s == 2.0
    assert metrics.value("disagg_generated_tokens_total") == 5


def test_an_end_tells_its_pace_unless_it_failed() -> None:
    metrics, made = Metrics(), journey()
    meter = Meter(metrics)
    made.transcript.take(1, 3, [20, 21, 22], (), None)
    made.timing.first_token_us = 1_000_000
    meter.ended(made, total_s=2.0)
    meter.ended(made, total_s=2.0, error_type="PEER_GONE")
    assert metrics.value("gen_ai_server_request_duration_seconds", error_type="PEER_GONE") == 1
    pace = "gen_ai_server_time_per_output_token_seconds"
    assert metrics.value(pace) == 1
    sums = [value for name, value in metrics.snapshot().items() if name.startswith(f"{pace}_sum")]
    assert sums == [pytest.approx(0.5)]


def test_a_phase_is_never_negative() -> None:
    metrics = Metrics()
    Meter(metrics).phase("admit", -0.1)
    assert metrics.value("disagg_phase_duration_seconds", phase="admit") == 1


@pytest.mark.parametrize(
    ("first_s", "total_s", "error_type", "verdict"),
    [
        (1.0, 2.0, "", "good"),
        (1.2, 2.0, "", "late_first_token"),  # 0.8 and 0.1 for each of 3 prompt tokens
        (1.0, 3.2, "", "slow_tokens"),
        (1.0, 2.0, "PEER_GONE", "failed"),
    ],
)
def test_a_request_is_judged_by_its_targets(
    first_s: float, total_s: float, error_type: str, verdict: str
) -> None:
    metrics, made = Metrics(), journey()
    made.transcript.take(1, 3, [20, 21, 22], (), None)
    made.timing.first_token_us = round(first_s * 1e6)
    targets = Targets(ttft_s=0.8, ttft_per_token_s=0.1, tpot_s=1.0)
    Meter(metrics, targets=targets).ended(made, total_s=total_s, error_type=error_type)
    assert metrics.value("disagg_slo_requests_total", verdict=verdict) == 1
    assert metrics.value("disagg_slo_requests_total") == 1


@pytest.mark.parametrize("error_type", ["CALLER_LEFT", "DUPLICATE_REQUEST"])
def test_what_its_caller_ended_is_not_judged(error_type: str) -> None:
    metrics, made = Metrics(), journey()
    Meter(metrics).ended(made, total_s=1.0, error_type=error_type)
    assert metrics.value("disagg_slo_requests_total") == 0
    assert metrics.value("gen_ai_server_request_duration_seconds", error_type=error_type) == 1
