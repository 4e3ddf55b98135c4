"""How journeys end, for callers and for metrics."""

from __future__ import annotations

from balancer.journey.request import Final, FinishReason, Usage
from balancer.journey.state import Journey
from runtime.metrics import Metrics

_PHASES = ("placement", "prefill_queue", "prefill", "commit", "fetch", "decode")


class Endings:
    """Counts every end once."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def arrived(self, journey: Journey, *, total_us: int) -> Final:
        """The end of a stream that has all its tokens, or whose caller goes on alone.

        Args:
            total_us: From the request's arrival until now, microseconds.
        """
        transcript, timing = journey.transcript, journey.timing
        reason = transcript.finish_reason or FinishReason.LENGTH
        timing.total_us = total_us
        self._count(journey, "routed" if journey.handover is not None else reason.value, "")
        prompt_tokens = len(journey.request.token_ids)
        self._metrics.count(
            "disagg_prompt_tokens_total", prompt_tokens - journey.cached_tokens, source="computed"
        )
        self._metrics.count("disagg_prompt_tokens_total", journey.cached_tokens, source="store")
        for phase in _PHASES:
            self._metrics.observe(
                "disagg_phase_duration_seconds", getattr(timing, f"{phase}_us") / 1e6, phase=phase
            )
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

    def failed(self, journey: Journey, reason: str) -> None:
        """The caller gets an error, or is not there any more."""
        self._count(journey, "failed", reason)

    def cancelled(self, journey: Journey, origin: str) -> None:
        """Somebody ended it; beside `arrived` or `failed`."""
        self._metrics.count("disagg_cancellations_total", stage=journey.leg.value, origin=origin)

    def _count(self, journey: Journey, outcome: str, reason: str) -> None:
        self._metrics.count("disagg_requests_total", outcome=outcome, reason=reason)
        self._metrics.count("disagg_generated_tokens_total", journey.transcript.seq)
        self._metrics.count("disagg_dropped_tokens_total", journey.transcript.num_dropped)
