"""How journeys end, for callers and for metrics."""

from __future__ import annotations

import dataclasses

from balancer.journey.meter import Meter
from balancer.journey.recent import Ended, RecentRequests
from balancer.journey.request import Final, FinishReason, Usage
from balancer.journey.state import Journey
from runtime.errors import Reason
from runtime.metrics import Metrics


class Endings:
    """Counts every end once, and keeps the last of them.

    Args:
        recent: Where they are kept; None: nowhere.
    """

    def __init__(
        self, metrics: Metrics, meter: Meter | None = None, recent: RecentRequests | None = None
    ) -> None:
        self._metrics = metrics
        self._meter = meter or Meter(metrics)
        self._recent = recent or RecentRequests(1)

    def arrived(self, journey: Journey, *, total_us: int) -> Final:
        """The end of a stream that has all its tokens, or whose caller goes on alone.

        Args:
            total_us: From the request's arrival until now, microseconds.
        """
        transcript, timing = journey.transcript, journey.timing
        reason = transcript.finish_reason or FinishReason.LENGTH
        outcome = "routed" if journey.handover is not None else reason.value
        self._count(journey, outcome, "")
        self._keep(journey, outcome, "", total_us)
        prompt_tokens = len(journey.request.token_ids)
        for source, num_tokens in (
            ("computed", prompt_tokens - journey.cached_tokens),
            ("store_hit", journey.cached_tokens),
        ):
            self._metrics.count("disagg_request_prompt_tokens_total", num_tokens, source=source)
        self._metrics.observe("vllm:request_prompt_tokens", prompt_tokens)
        self._metrics.observe("vllm:request_generation_tokens", transcript.seq)
        self._meter.ended(journey, total_s=total_us / 1e6)
        return Final(
            attempt=journey.attempt,
            seq=transcript.seq,
            text=transcript.finish(),
            finish_reason=reason,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=transcript.seq,
                cached_tokens=journey.cached_tokens,
            ),
            timing=timing,
        )

    def failed(self, journey: Journey, reason: str, *, total_us: int = 0) -> None:
        """The caller gets an error, or is not there any more; `total_us` as for `arrived`."""
        outcome = FinishReason.ABORT.value if reason == Reason.CALLER_LEFT else "failed"
        self._count(journey, outcome, reason)
        self._keep(journey, outcome, reason, total_us)
        self._meter.ended(journey, total_s=total_us / 1e6, error_type=reason)

    def cancelled(self, journey: Journey, origin: str) -> None:
        """Somebody ended it; beside `arrived` or `failed`."""
        self._metrics.count("disagg_cancellations_total", stage=journey.leg.value, origin=origin)

    def _keep(self, journey: Journey, outcome: str, reason: str, total_us: int) -> None:
        request, timing = journey.request, journey.timing
        timing.total_us = total_us
        self._recent.append(
            Ended(
                request_id=request.request_id,
                ended_at=request.arrived_at + total_us / 1e6,
                outcome=outcome,
                reason=reason,
                prompt_tokens=len(request.token_ids),
                cached_tokens=journey.cached_tokens,
                generated_tokens=journey.transcript.seq,
                attempts=journey.attempt,
                timing=dataclasses.replace(timing),
            )
        )

    def _count(self, journey: Journey, outcome: str, reason: str) -> None:
        self._metrics.count(
            "disagg_requests_total",
            endpoint=journey.request.endpoint,
            outcome=outcome,
            reason=reason,
        )
        self._metrics.count("disagg_dropped_tokens_total", journey.transcript.num_dropped)
