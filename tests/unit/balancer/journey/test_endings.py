"""Every end is counted once, under its outcome."""

from __future__ import annotations

from balancer.journey.endings import Endings
from balancer.journey.recent import RecentRequests
from balancer.journey.request import Delta, FinishReason, Request, Sampling
from balancer.journey.retry import Leg, Outage, RequestRetries
from balancer.journey.state import Handover, Journey, Pair
from balancer.journey.transcript import Transcript
from balancer.remote.legs import Ticket
from runtime.metrics import Metrics
from tests.fakes.memberships import member


class Text:
    def push(self, token_id: int) -> str:
        return "x"

    def finish(self) -> str:
        return "!"


async def emit(delta: Delta) -> None:
    raise AssertionError(delta)


def journey() -> Journey:
    made = Journey(
        request=Request(
            request_id="r",
            token_ids=(7, 8, 9),
            sampling=Sampling(seed=1, max_tokens=5),
            arrived_at=0.0,
            deadline=9.0,
        ),
        transcript=Transcript(last_seq=0, text=Text()),
        emit=emit,
        retries=RequestRetries(prefill=1, decode=1),
        outage=Outage(10.0),
        cached_tokens=2,
    )
    made.transcript.begin(1)
    return made


def test_an_arrival_is_told_and_counted() -> None:
    metrics, made = Metrics(), journey()
    made.transcript.take(1, 2, [20, 21], (), FinishReason.STOP)
    final = Endings(metrics).arrived(made, total_us=77)
    assert (final.seq, final.text, final.finish_reason) == (2, "!", FinishReason.STOP)
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (3, 2)
    assert (final.usage.cached_tokens, final.timing.total_us) == (2, 77)
    assert metrics.value("disagg_requests_total", outcome="stop", reason="") == 1
    assert metrics.value("disagg_request_prompt_tokens_total", source="store_hit") == 2
    assert metrics.value("disagg_request_prompt_tokens_total", source="computed") == 1
    assert metrics.value("gen_ai_server_request_duration_seconds", error_type="") == 1


def test_no_reason_of_its_own_means_the_limit() -> None:
    assert Endings(Metrics()).arrived(journey(), total_us=0).finish_reason is FinishReason.LENGTH


def test_a_handover_is_an_outcome_of_its_own() -> None:
    metrics, made = Metrics(), journey()
    made.handover = Handover(
        pair=Pair(prefill=member("p"), decode=member("d"), credit_id="c"),
        call=made.prefill_call(),
        ticket=Ticket(handoff_id="h", fingerprint=b"", wire=b""),
    )
    assert made.is_over
    Endings(metrics).arrived(made, total_us=0)
    assert metrics.value("disagg_requests_total", outcome="routed", reason="") == 1


def test_failures_and_cancellations() -> None:
    metrics, made = Metrics(), journey()
    made.enter(Leg.DECODE, member("d"))
    endings = Endings(metrics)
    endings.failed(made, "PEER_GONE")
    endings.cancelled(made, "client")
    assert metrics.value("disagg_requests_total", outcome="failed", reason="PEER_GONE") == 1
    assert metrics.value("disagg_cancellations_total", stage="decode", origin="client") == 1


def test_every_end_is_kept_with_its_times() -> None:
    recent, made = RecentRequests(), journey()
    endings = Endings(Metrics(), recent=recent)
    made.timing.lookup_us = 5
    endings.failed(made, "PEER_GONE", total_us=2_000_000)
    made.transcript.take(1, 2, [20, 21], (), FinishReason.STOP)
    endings.arrived(made, total_us=3_000_000)
    arrived, failed = recent.latest()
    assert (failed.outcome, failed.reason, failed.ended_at) == ("failed", "PEER_GONE", 2.0)
    assert (arrived.outcome, arrived.reason, arrived.ended_at) == ("stop", "", 3.0)
    assert (arrived.prompt_tokens, arrived.cached_tokens, arrived.generated_tokens) == (3, 2, 2)
    assert (failed.timing.total_us, arrived.timing.total_us) == (2_000_000, 3_000_000)
    assert failed.timing.lookup_us == 5
