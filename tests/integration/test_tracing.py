"""One request's spans against the table: prefix miss, hit, second attempt, caller who leaves.

A balancer, a prefill and a decode rank on loopback, one loop, with the toy model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import httpx2
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from disagg import block_hash
from kvstore.errors import BlockMissing
from runtime.tracing.table import (
    ERROR_ATTRIBUTES,
    MAX_CHUNK_EVENTS,
    SPANS,
)
from tests.fakes.services import BLOCK, tokens, until
from tests.fakes.spans import Recorded, facts, links, parent_id, span_id
from tests.fakes.traced import Traced, traced_system

pytestmark = pytest.mark.medium

GENERATE = "disagg.v1.GenerationService/Generate"
PREFILL, DECODE = "disagg.v1.PrefillService/Prefill", "disagg.v1.DecodeService/Decode"
RESERVE, PREFETCH = "disagg.v1.DecodeService/ReserveSlot", "disagg.v1.DecodeService/Prefetch"
RELEASE = "disagg.v1.DecodeService/ReleaseSlot"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
LONG = tokens(37)  # nine blocks of four and a tail; three chunks of sixteen

# The table: name, kind, process, parent (name and kind), of a request that finds nothing stored.
SERVER, CLIENT, INTERNAL = SpanKind.SERVER, SpanKind.CLIENT, SpanKind.INTERNAL
Row = tuple[str, SpanKind, str, tuple[str, SpanKind] | None]
FRONT: list[Row] = [
    (GENERATE, SERVER, "balancer", None),
    ("balancer.text", INTERNAL, "balancer", (GENERATE, SERVER)),
    ("balancer.admit", INTERNAL, "balancer", (GENERATE, SERVER)),
]
PLACED: list[Row] = [
    ("balancer.route", INTERNAL, "balancer", (GENERATE, SERVER)),
    (RESERVE, CLIENT, "balancer", (GENERATE, SERVER)),
    (RESERVE, SERVER, "decode", (RESERVE, CLIENT)),
]
PREFILLED: list[Row] = [
    (PREFILL, CLIENT, "balancer", (GENERATE, SERVER)),
    (PREFILL, SERVER, "prefill", (PREFILL, CLIENT)),
    ("prefill.lookup", INTERNAL, "prefill", (PREFILL, SERVER)),
    ("prefill.queue", INTERNAL, "prefill", (PREFILL, SERVER)),
    ("prefill.compute", INTERNAL, "prefill", (PREFILL, SERVER)),
    ("prefill.publish", INTERNAL, "prefill", (PREFILL, SERVER)),
    ("prefill.commit", INTERNAL, "prefill", (PREFILL, SERVER)),
    ("kvstore.commit", CLIENT, "prefill", ("prefill.publish", INTERNAL)),
]
PUT: Row = ("kvstore.put", CLIENT, "prefill", ("prefill.publish", INTERNAL))
LOADED: list[Row] = [
    ("prefill.load_prefix", INTERNAL, "prefill", (PREFILL, SERVER)),
    ("kvstore.get", CLIENT, "prefill", ("prefill.load_prefix", INTERNAL)),
]
CALLED: list[Row] = [
    (DECODE, CLIENT, "balancer", (GENERATE, SERVER)),
    (DECODE, SERVER, "decode", (DECODE, CLIENT)),
    ("decode.fetch", INTERNAL, "decode", (DECODE, SERVER)),
    ("kvstore.lease", CLIENT, "decode", ("decode.fetch", INTERNAL)),
]
DECODED: list[Row] = [
    *CALLED,
    ("kvstore.get", CLIENT, "decode", ("decode.fetch", INTERNAL)),
    ("decode.queue", INTERNAL, "decode", (DECODE, SERVER)),
    ("decode.generate", INTERNAL, "decode", (DECODE, SERVER)),
]
# Whether decode reads ahead depends on who is faster.
MAYBE = {
    (PREFETCH, CLIENT, "balancer", (GENERATE, SERVER)),
    (PREFETCH, SERVER, "decode", (PREFETCH, CLIENT)),
    (RELEASE, CLIENT, "balancer", (GENERATE, SERVER)),
    (RELEASE, SERVER, "decode", (RELEASE, CLIENT)),
}


def rows_of(spans: Iterable[ReadableSpan]) -> Counter[Row]:
    """The spans in the form of the table, without those that need not be there."""
    by_id = {span_id(span): span for span in spans}
    rows: Counter[Row] = Counter()
    for span in by_id.values():
        above = by_id.get(parent_id(span))
        role = str(span.resource.attributes["disagg.role"])
        row = (span.name, span.kind, role, None if above is None else (above.name, above.kind))
        if row not in MAYBE:
            rows[row] += 1
    return rows


def trace_of(found: Recorded, request_id: str) -> list[ReadableSpan]:
    """All spans of a request's trace."""
    (front,) = (
        span
        for span in found.named(GENERATE)
        if facts(span)["disagg.request_id"] == request_id and span.kind is SERVER
    )
    return [span for span in found.spans if span.context.trace_id == front.context.trace_id]


def named(spans: Iterable[ReadableSpan], name: str, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name and span.kind is kind]


def check_rows(spans: Iterable[ReadableSpan]) -> None:
    """Every span of ours says and does what its row allows, and nothing twice a prompt's size."""
    for span in spans:
        if span.name not in SPANS:
            continue
        row = SPANS[span.name]  # type: ignore[index]
        assert span.kind is KINDS[row.kind]
        assert set(facts(span)) <= {*row.attributes, *ERROR_ATTRIBUTES}, span.name
        assert {event.name for event in span.events} <= set(row.events), span.name
        assert {kind for kind, _ in links(span)} <= set(row.links), span.name
        assert len(span.events) <= MAX_CHUNK_EVENTS


def check_no_content(spans: Iterable[ReadableSpan]) -> None:
    for span in spans:
        for value in facts(span).values():
            assert not isinstance(value, list | tuple) or all(isinstance(v, str) for v in value)


async def test_a_miss_and_then_a_hit() -> None:
    async with traced_system() as system:
        first = await system.generate("miss", LONG, metadata=[("traceparent", PARENT)])
        spans = trace_of(system.found, "miss")
        rows = rows_of(spans)
        assert rows.pop(PUT) >= 1
        expected = Counter([*FRONT, *PLACED, *PREFILLED, *DECODED])
        expected["kvstore.lease", CLIENT, "decode", ("decode.fetch", INTERNAL)] = 2
        assert rows == expected
        check_rows(spans)
        check_no_content(spans)
        check_facts_of_a_miss(spans)
        await noted(system)
        assert await system.generate("hit", LONG) == first
        spans = trace_of(system.found, "hit")
        rows = rows_of(spans)
        assert not rows.pop(PUT, 0)  # everything is stored
        expected += Counter(LOADED)
        expected["kvstore.get", CLIENT, "prefill", ("prefill.load_prefix", INTERNAL)] = 2
        assert rows == expected
        check_rows(spans)
        (load,) = named(spans, "prefill.load_prefix", INTERNAL)
        assert facts(load)["disagg.cached_tokens"] == 36
        assert facts(load)["disagg.kv.blocks"] == 9
        (writer,) = named(trace_of(system.found, "miss"), "prefill.commit", INTERNAL)
        assert links(load) == [("kv_prefix_reuse", span_id(writer))]
        (served,) = named(spans, PREFILL, SERVER)
        assert facts(served)["disagg.cached_tokens"] == 36
        (front,) = named(spans, GENERATE, SERVER)
        assert facts(front)["gen_ai.usage.cache_read.input_tokens"] == 36


async def noted(system: Traced) -> None:
    """Waits for the note of who wrote the blocks, which nobody else waits for."""
    chain = list(block_hash.chain(LONG, BLOCK))
    await until(lambda: bool(system.rig.store.writers(chain, 8)), lambda: "the writer left no note")


def check_facts_of_a_miss(spans: list[ReadableSpan]) -> None:
    """Attributes, events and links that the table names."""
    (front,) = named(spans, GENERATE, SERVER)
    said = facts(front)
    assert parent_id(front) == "b7ad6b7169203331"
    assert said["rpc.response.status_code"] == "OK"
    assert said["gen_ai.usage.input_tokens"] == 37
    assert said["gen_ai.usage.output_tokens"] == 8
    assert said["gen_ai.response.finish_reasons"] == ("length",)
    assert said["disagg.tier"]
    assert [event.name for event in front.events] == ["first_token", "last_token"]
    (route,) = named(spans, "balancer.route", INTERNAL)
    assert facts(route)["disagg.route.prefill"] == "prefill-0-r0"
    assert facts(route)["disagg.route.decision_id"] == "miss"
    (compute,) = named(spans, "prefill.compute", INTERNAL)
    ends = [
        int(str((event.attributes or {})["disagg.computed_tokens"])) for event in compute.events
    ]
    assert len(ends) > 1
    assert ends == sorted(set(ends))  # every chunk once
    assert ends[-1] == 37
    assert facts(compute)["disagg.computed_tokens"] == 37
    (publish,) = named(spans, "prefill.publish", INTERNAL)
    assert facts(publish)["disagg.kv.blocks"] == 9
    assert facts(publish)["disagg.kv.fingerprint"] == "0123456789abcdef"
    puts = named(spans, "kvstore.put", CLIENT)
    assert sum(int(str(facts(put)["disagg.kv.blocks"])) for put in puts) == 9
    (commit,) = named(spans, "prefill.commit", INTERNAL)
    (fetch,) = named(spans, "decode.fetch", INTERNAL)
    assert links(fetch) == [("kv_handoff", span_id(commit))]
    assert facts(fetch)["disagg.verified"] is True
    (called,) = named(spans, DECODE, CLIENT)
    assert facts(called)["disagg.handoff_id"] == facts(commit)["disagg.handoff_id"]
    (generate,) = named(spans, "decode.generate", INTERNAL)
    assert facts(generate)["disagg.output_tokens"] == 7
    assert [event.name for event in generate.events] == ["first_token"]
    # Only the front door is counted as a call of the model.
    assert [span.name for span in spans if "gen_ai.request.model" in facts(span)] == [GENERATE]
    for span in spans:
        assert span.status.status_code is StatusCode.UNSET
        assert "disagg.cancelled" not in facts(span), span.name


async def test_a_second_attempt_points_to_the_first() -> None:
    async with traced_system() as system:
        acquire, failures = system.rig.backend.acquire, [BlockMissing("body", 0)]

        def once(*arguments):  # type: ignore[no-untyped-def]
            if failures:
                raise failures.pop()
            return acquire(*arguments)

        system.rig.backend.acquire = once  # type: ignore[method-assign]
        assert len(await system.generate("again", LONG)) == 8
        spans = trace_of(system.found, "again")
        rows = rows_of(spans)
        # The first attempt came as far as its lease; the second found the blocks of the first.
        for row in [*FRONT, *PLACED, *PREFILLED, *DECODED, *PLACED, *PREFILLED, *CALLED]:
            assert rows[row] >= 1, row
        for name, kind in ((PREFILL, CLIENT), (DECODE, CLIENT)):
            first, second = sorted(named(spans, name, kind), key=lambda span: span.start_time or 0)
            assert links(first) == []
            assert links(second) == [("retry_of", span_id(first))]
            assert [facts(span)["disagg.attempt"] for span in (first, second)] == [1, 2]
        failed, good = sorted(named(spans, DECODE, CLIENT), key=lambda span: span.start_time or 0)
        assert facts(failed)["rpc.response.status_code"] == "NOT_FOUND"
        assert facts(failed)["error.type"] == "BLOCK_EVICTED"
        assert failed.status.status_code is StatusCode.ERROR
        assert facts(good)["rpc.response.status_code"] == "OK"
        (front,) = named(spans, GENERATE, SERVER)
        assert facts(front)["disagg.attempt"] == 2
        assert front.status.status_code is StatusCode.UNSET
        check_rows(spans)


async def test_a_caller_that_leaves_ends_every_span_and_is_no_error() -> None:
    async with traced_system() as system:
        stage = system.rig.backend.stages["acquire"]
        stage.close()
        call = system.call("left", LONG)
        async for message in call:
            if message.token_ids:
                break  # the first token; decode waits for its lease
        await stage.wait_reached()
        call.cancel()
        await until(lambda: bool(system.found.named("decode.fetch")))  # while its thread is held
        stage.open()
        await system.settle()
        spans = trace_of(system.found, "left")
        check_rows(spans)
        for name, kind in ((GENERATE, SERVER), (DECODE, CLIENT), (DECODE, SERVER)):
            (span,) = named(spans, name, kind)
            assert facts(span)["disagg.cancelled"] is True, (name, kind)
            assert span.status.status_code is StatusCode.UNSET, (name, kind)
        (fetch,) = named(spans, "decode.fetch", INTERNAL)
        assert facts(fetch)["disagg.cancelled"] is True
        assert not named(spans, "decode.generate", INTERNAL)


async def test_an_unsampled_request_leaves_nothing_behind() -> None:
    async with traced_system() as system:
        headers = [("traceparent", PARENT[:-2] + "00")]
        assert len(await system.generate("unseen", LONG, metadata=headers)) == 8
        assert system.found.spans == ()


async def test_two_prompts_of_one_http_call_are_no_retries_of_each_other() -> None:
    async with traced_system(http={"port": 0}) as system:
        body = {
            "model": "tiny-v4",
            "prompt": [list(LONG), list(tokens(21, salt=1))],
            "max_tokens": 4,
            "ignore_eos": True,
        }
        async with httpx2.AsyncClient(base_url=f"http://{system.http}", timeout=20) as client:
            answer = await client.post(
                "/v1/completions",
                json=body,
                headers={
                    "traceparent": PARENT,
                    "x-request-id": "both",
                    "baggage": "disagg.experiment=a,user=secret",
                },
            )
        assert answer.status_code == 200
        await system.settle()
        (front,) = system.found.named("POST /v1/completions")
        said = facts(front)
        assert front.kind is SERVER
        assert parent_id(front) == "b7ad6b7169203331"
        assert said["http.response.status_code"] == 200
        assert said["disagg.request_id"] == "both"
        assert said["gen_ai.request.choice.count"] == 2
        calls = named(system.found.spans, PREFILL, CLIENT)
        assert {facts(call)["disagg.request_id"] for call in calls} == {"both-0", "both-1"}
        assert all(links(call) == [] for call in calls)
        assert "secret" not in str([facts(span) for span in system.found.spans])
