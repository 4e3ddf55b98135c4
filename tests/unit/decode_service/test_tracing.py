"""Spans of a sequence: where it came from, how it waited, how its tokens came."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest
from opentelemetry.trace import StatusCode

from decode_service.tracing import GenerateSpans, fetching
from kvstore.ticket import Ticket
from runtime.clock import ManualClock
from runtime.telemetry import NO_SPAN
from tests.fakes.spans import facts, links, recorded, served

TICKET = Ticket(
    handoff_id="0" * 32,
    request_id="r",
    attempt=1,
    fingerprint=bytes(8),
    num_tokens=4,
    num_blocks=1,
    last_block_hash=bytes(32),
    tail_key="k",
    tail_digest=bytes(16),
    body_digest=bytes(32),
    first_token=1,
    fencing_token=1,
    remaining_s=1.0,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)


@dataclass
class Handle:
    started_at: float | None = None


def test_a_fetch_points_to_the_commit_of_its_ticket() -> None:
    found = recorded()
    with served(found), fetching(TICKET):
        pass
    assert links(found.one("decode.fetch")) == [("kv_handoff", "b7ad6b7169203331")]


@pytest.mark.parametrize("traceparent", ["", "nonsense"])
def test_a_ticket_of_no_trace_has_no_link(traceparent: str) -> None:
    found = recorded()
    with served(found), fetching(replace(TICKET, traceparent=traceparent)):
        pass
    assert links(found.one("decode.fetch")) == []


def test_tokens_and_the_gaps_between_them() -> None:
    clock = ManualClock(now=5.0)
    found, handle = recorded(clock=clock), Handle()
    with served(found), GenerateSpans(handle, clock.now(), clock) as spans:
        handle.started_at = 6.0
        clock.advance(2.0)
        spans.tokens(1)
        clock.advance(0.1)
        spans.tokens(2)
        clock.advance(0.3)
        spans.tokens(2)
    generate = found.one("decode.generate")
    said = facts(generate)
    assert said["disagg.output_tokens"] == 5
    assert said["disagg.steps"] == 3
    assert said["disagg.tpot_ms"] == pytest.approx(100.0)
    assert said["disagg.max_gap_ms"] == pytest.approx(300.0)
    assert [event.name for event in generate.events] == ["first_token"]
    queue = found.one("decode.queue")
    assert (queue.end_time or 0) - (queue.start_time or 0) == 1_000_000_000
    assert generate.start_time == queue.end_time


def test_a_sequence_that_failed_before_it_ran() -> None:
    found, clock = recorded(), ManualClock()
    with pytest.raises(ValueError), served(found), GenerateSpans(Handle(), 0.0, clock):
        raise ValueError
    assert found.named("decode.generate") == []
    assert found.one("decode.queue").status.status_code is StatusCode.ERROR


def test_without_a_trace_nothing_is_counted() -> None:
    assert fetching(TICKET) is NO_SPAN
    with GenerateSpans(Handle(0.0), 0.0, ManualClock()) as spans:
        spans.tokens(3)


def test_who_has_the_last_token_may_leave() -> None:
    found, clock = recorded(), ManualClock()

    def leave() -> None:
        with served(found), GenerateSpans(Handle(0.0), 0.0, clock) as spans:
            spans.tokens(1)
            spans.last()
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        leave()
    for span in found.spans:
        assert "disagg.cancelled" not in facts(span), span.name
    assert facts(found.one("a.B/C")) == {"rpc.response.status_code": "OK"}
