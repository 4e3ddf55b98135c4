"""What is measured of a request on its way: first token, gaps between tokens, whole duration.

A token that came twice is no progress; several that came at once share the time they took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from balancer.journey.request import FinishReason, Request
from balancer.journey.state import Journey
from runtime.errors import Reason
from runtime.metrics import Metrics

CALLERS_OWN = frozenset({Reason.CALLER_LEFT, Reason.DUPLICATE_REQUEST})
"""Ends that say nothing of how this system does; the recording rules leave them out too."""


def _one_tier(_num_tokens: int) -> str:
    return "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Latencies a request should keep, where it names none itself.

    Args:
        ttft_s, ttft_per_token_s: To the first token: constant, and part per prompt token.
        tpot_s: Per output token.
    """

    ttft_s: float = float("inf")
    ttft_per_token_s: float = 0.0
    tpot_s: float = float("inf")

    def of(self, request: Request) -> tuple[float, float]:
        """Seconds to the first token and per output token."""
        ttft_s = self.ttft_s + self.ttft_per_token_s * len(request.token_ids)
        return (
            ttft_s if request.ttft_slo_s is None else request.ttft_slo_s,
            self.tpot_s if request.tpot_slo_s is None else request.tpot_slo_s,
        )


class Meter:
    """Measures journeys; belongs to one event loop.

    Args:
        targets: What a good request keeps.
        tier_of: Name of the length class of a prompt of so many tokens.
    """

    def __init__(
        self,
        metrics: Metrics,
        tier_of: Callable[[int], str] = _one_tier,
        targets: Targets = Targets(),
    ) -> None:
        self._metrics = metrics
        self._targets = targets
        self._tier_of = tier_of
        self._handed_out = metrics.recorder("disagg_generated_tokens_total")
        self._gap = metrics.recorder("disagg_inter_token_latency_seconds")

    def tokens(self, journey: Journey, num_new: int, now: float) -> None:
        """New tokens go out; `now` is the clock that the request's arrival is told in."""
        if num_new < 1:
            return
        self._handed_out(num_new)
        if journey.last_token_at is None:
            if not journey.request.last_seq:
                self._observe("time_to_first_token", journey, now - journey.request.arrived_at)
        else:
            gap_s = now - journey.last_token_at
            journey.max_gap_s = max(journey.max_gap_s, gap_s)
            self._gap(gap_s / num_new)
        journey.last_token_at = now

    def phase(self, phase: str, seconds: float) -> None:
        """A part of a request is over."""
        self._metrics.observe("disagg_phase_duration_seconds", max(0.0, seconds), phase=phase)

    def ended(self, journey: Journey, *, total_s: float, error_type: str = "") -> None:
        """The request is over, well or not."""
        self._observe("request_duration", journey, total_s, error_type)
        num_tokens = journey.transcript.seq
        if journey.handover is not None:
            return  # the rest of it is not seen here
        first_s = journey.timing.first_token_us / 1e6
        pace_s = max(0.0, total_s - first_s) / max(1, num_tokens - 1)
        is_cancelled = journey.transcript.finish_reason is FinishReason.ABORT
        if error_type not in CALLERS_OWN and not is_cancelled:
            self._judge(journey.request, first_s, pace_s, is_failed=bool(error_type))
        if error_type or num_tokens < 2:
            return
        self._observe("time_per_output_token", journey, pace_s)
        self._metrics.observe("disagg_max_token_gap_seconds", journey.max_gap_s)

    def _judge(self, request: Request, first_s: float, pace_s: float, *, is_failed: bool) -> None:
        ttft_s, tpot_s = self._targets.of(request)
        if is_failed:
            verdict = "failed"
        elif first_s > ttft_s:
            verdict = "late_first_token"
        elif pace_s > tpot_s:
            verdict = "slow_tokens"
        else:
            verdict = "good"
        tier = self._tier_of(len(request.token_ids))
        self._metrics.count("disagg_slo_requests_total", tier=tier, verdict=verdict)

    def _observe(self, what: str, journey: Journey, value: float, error_type: str = "") -> None:
        request = journey.request
        self._metrics.observe(
            f"gen_ai_server_{what}_seconds",
            value,
            gen_ai_operation_name="chat" if request.is_chat else "text_completion",
            tier=self._tier_of(len(request.token_ids)),
            error_type=error_type,
        )
