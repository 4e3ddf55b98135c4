"""Spans of a prompt that begin and end in other threads: bursts, bounds, ends without a begin."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from opentelemetry.trace import StatusCode

from kvstore.tracing import StoreSpans
from prefill_service.tracing import MAX_BURSTS, ComputeSpans, PublishSpans
from runtime.clock import ManualClock
from runtime.tracing.table import MAX_CHUNK_EVENTS
from tests.fakes.spans import facts, recorded, served


@dataclass
class Handle:
    started_at: float | None = None


def test_the_wait_ends_where_the_computing_begins() -> None:
    clock = ManualClock(now=10.0, wall=100.0)
    found, handle = recorded(clock=clock), Handle()
    with served(found):
        submitted = clock.now()
        with ComputeSpans(handle, submitted, 32) as spans:
            handle.started_at = 12.0
            clock.advance(3.0)
            spans.chunk(40)
            spans.chunk(44)
    queue, compute = found.one("prefill.queue"), found.one("prefill.compute")
    assert (queue.start_time, queue.end_time) == (100_000_000_000, 102_000_000_000)
    assert (compute.start_time, compute.end_time) == (102_000_000_000, 103_000_000_000)
    assert facts(compute) == {"disagg.computed_tokens": 12}
    assert [dict(event.attributes or {}) for event in compute.events] == [
        {"disagg.computed_tokens": 8},
        {"disagg.computed_tokens": 12},
    ]


def test_chunks_beyond_the_bound_have_no_event() -> None:
    found = recorded()
    with served(found), ComputeSpans(Handle(0.0), 0.0, 0) as spans:
        for count in range(1, 100):
            spans.chunk(count)
    compute = found.one("prefill.compute")
    assert len(compute.events) == MAX_CHUNK_EVENTS
    assert facts(compute) == {"disagg.computed_tokens": 99}


def test_a_prompt_that_never_began_has_only_waited() -> None:
    found = recorded()
    with pytest.raises(ValueError), served(found), ComputeSpans(Handle(), 0.0, 0):
        raise ValueError
    assert found.named("prefill.compute") == []
    assert found.one("prefill.queue").status.status_code is StatusCode.ERROR


def test_a_burst_is_one_span_however_many_blocks() -> None:
    found = recorded()
    with served(found):
        spans = PublishSpans(StoreSpans(), b"\1" * 8)
        for _ in range(2):
            for _ in range(5):
                spans.queued()
            for _ in range(4):
                spans.written(100, is_block=True)
            spans.written(50, is_block=False)
        spans.end()
    puts = found.named("kvstore.put")
    assert [facts(put)["disagg.kv.blocks"] for put in puts] == [4, 4]
    assert [facts(put)["disagg.kv.bytes"] for put in puts] == [450, 450]
    assert facts(found.one("prefill.publish")) == {
        "disagg.kv.blocks": 8,
        "disagg.kv.bytes": 900,
        "disagg.kv.segments": 10,
        "disagg.kv.fingerprint": "01" * 8,
    }


def test_bursts_are_bounded_and_the_last_covers_the_rest() -> None:
    found = recorded()
    with served(found):
        spans = PublishSpans(StoreSpans(), bytes(8))
        for _ in range(3 * MAX_BURSTS):
            spans.queued()
            spans.written(1, is_block=True)
        spans.end()
        spans.end()
    puts = found.named("kvstore.put")
    assert len(puts) == MAX_BURSTS
    assert facts(puts[-1])["disagg.kv.blocks"] == 2 * MAX_BURSTS + 1


def test_what_failed_is_marked_and_what_never_began_leaves_nothing() -> None:
    found = recorded()
    with served(found):
        PublishSpans(StoreSpans(), bytes(8)).end(ValueError())
        spans = PublishSpans(StoreSpans(), bytes(8))
        spans.queued()
        spans.written(0, is_block=True)
        spans.end(ValueError())
    (publish,) = found.named("prefill.publish")
    assert publish.status.status_code is StatusCode.ERROR
    assert facts(publish)["disagg.kv.blocks"] == 0


def test_without_a_trace_nothing_is_counted() -> None:
    spans = PublishSpans(StoreSpans(), bytes(8))
    spans.queued()
    spans.written(1, is_block=True)
    assert not spans.span.is_recording
    spans.end()
    with ComputeSpans(Handle(0.0), 0.0, 0) as compute:
        compute.chunk(1)
