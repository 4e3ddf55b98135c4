"""Spans as a collector keeps them, for tests of what is drawn."""

from __future__ import annotations

from disagg.v1 import traces_pb2

MS = 1_000_000
START_NS = 1_700_000_000_000_000_000
KINDS = {
    "internal": traces_pb2.SPAN_KIND_INTERNAL,
    "server": traces_pb2.SPAN_KIND_SERVER,
    "client": traces_pb2.SPAN_KIND_CLIENT,
}


def a_span(
    number: int,
    name: str,
    *,
    parent: int = 0,
    at: float = 0.0,
    took: float = 1.0,
    kind: str = "internal",
    process: str = "disagg-balancer/balancer-1",
    trace: int = 1,
    error: bool = False,
    events: tuple[tuple[str, float], ...] = (),
    links: tuple[tuple[str, int, int], ...] = (),
    **attributes: object,
) -> traces_pb2.TraceSpan:
    """A span; times in milliseconds from the begin, links as (kind, trace, span)."""
    service, _, instance = process.partition("/")
    return traces_pb2.TraceSpan(
        trace_id=trace.to_bytes(16),
        span_id=number.to_bytes(8),
        parent_span_id=parent.to_bytes(8) if parent else b"",
        name=name,
        kind=KINDS[kind],
        start_ns=START_NS + round(at * MS),
        end_ns=START_NS + round((at + took) * MS),
        service=service,
        process=instance,
        attributes={key.replace("__", "."): str(value) for key, value in attributes.items()},
        events=[
            traces_pb2.SpanEvent(name=event, time_ns=START_NS + round(when * MS))
            for event, when in events
        ],
        links=[
            traces_pb2.SpanLink(kind=kind, trace_id=of.to_bytes(16), span_id=to.to_bytes(8))
            for kind, of, to in links
        ],
        is_error=error,
    )


def a_request() -> list[traces_pb2.TraceSpan]:
    """A short trace over three processes, out of order."""
    prefill, decode = "disagg-prefill/prefill-0-r0-aa", "disagg-decode/decode-0-r1-bb"
    generate = "disagg.v1.GenerationService/Generate"
    return [
        a_span(6, "decode.generate", parent=5, at=60, took=40, process=decode, disagg__steps=3),
        a_span(
            1,
            generate,
            took=100,
            kind="server",
            events=(("first_token", 50.0),),
            disagg__request_id="r-1",
            gen_ai__usage__input_tokens=40,
            gen_ai__usage__output_tokens=8,
            gen_ai__usage__cache_read__input_tokens=32,
            gen_ai__response__time_to_first_chunk=0.05,
        ),
        a_span(
            3,
            "disagg.v1.PrefillService/Prefill",
            parent=1,
            at=5,
            took=45,
            kind="client",
            rpc__method="disagg.v1.PrefillService/Prefill",
            disagg__prompt_tokens=40,
        ),
        a_span(2, "balancer.route", parent=1, at=1, took=2),
        a_span(
            4,
            "prefill.commit",
            parent=3,
            at=40,
            took=8,
            process=prefill,
            disagg__handoff_id="0123456789abcdef",
        ),
        a_span(
            5,
            "decode.fetch",
            parent=1,
            at=52,
            took=6,
            process=decode,
            links=(("kv_handoff", 1, 4), ("kv_prefix_reuse", 9, 9)),
            disagg__kv__bytes=12_345,
            disagg__verified="true",
        ),
    ]
