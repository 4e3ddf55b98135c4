"""What a line says at its end."""

import pytest

from cli.traces.notes import notes_of, summary_of
from disagg.v1 import traces_pb2
from tests.fakes.trace_spans import a_request, a_span

KNOWN = {span.span_id: span for span in a_request()}


def notes(**attributes: object) -> list[str]:
    return list(notes_of(a_span(1, "x", **attributes), KNOWN))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"disagg__attempt": 1}, []),
        ({"disagg__attempt": 2}, ["attempt 2"]),
        ({"disagg__prompt_tokens": 1, "disagg__cached_tokens": 0}, ["1 token"]),
        ({"disagg__prompt_tokens": 40, "disagg__cached_tokens": 32}, ["40 tokens", "32 cached"]),
        ({"disagg__kv__hit_blocks": 0, "disagg__kv__miss_blocks": 3}, ["0 hit", "3 missed"]),
        ({"disagg__kv__blocks": 2, "disagg__kv__bytes": 12_345}, ["2 blocks", "12.3 KB"]),
        ({"disagg__kv__bytes": 0, "disagg__kv__prefetched_bytes": 0}, []),
        ({"disagg__verified": "true"}, ["verified"]),
        ({"disagg__verified": "false"}, ["NOT VERIFIED"]),
        ({"disagg__queue": "engine"}, ["for engine"]),
        ({"disagg__tpot_ms": 20.44, "disagg__max_gap_ms": "x"}, ["20.4 ms each"]),
        ({"disagg__handoff_id": "0123456789abcdef"}, ["hand-off 01234567"]),
        ({"disagg__kv__blocks": "many"}, []),  # a number of somebody else's
        ({"disagg__cancelled": "true"}, ["cancelled"]),
        ({"error__type": "QUEUE_FULL"}, ["refused QUEUE_FULL"]),
        ({"error": True, "error__type": "STORE_DOWN"}, ["FAILED STORE_DOWN"]),
        ({"error": True}, ["FAILED"]),
    ],
)
def test_facts_in_words(attributes: dict[str, object], said: list[str]) -> None:
    assert notes(**attributes) == said


def test_links_name_the_span_or_the_trace_they_lead_to() -> None:
    fetch = next(span for span in a_request() if span.name == "decode.fetch")
    assert list(notes_of(fetch, KNOWN))[-2:] == [
        "<- kv_handoff prefill.commit",
        "<- kv_prefix_reuse trace 00000000",
    ]


def test_a_call_leaves_the_facts_to_the_server_below_it() -> None:
    call = a_span(
        3, "a.B/C", kind="client", rpc__method="a.B/C", disagg__prompt_tokens=4, disagg__attempt=3
    )
    assert list(notes_of(call, KNOWN)) == ["attempt 3"]


def test_the_summary_of_a_request() -> None:
    assert summary_of(a_request()) == (
        "40 prompt tokens (32 cached), 8 tokens generated, first after 50.0 ms"
    )
    assert summary_of([traces_pb2.TraceSpan(name="x")]) == ""
    failed = a_span(1, "x", gen_ai__usage__input_tokens=1, disagg__attempt=2)
    assert summary_of([failed]) == "1 prompt token, 2 attempts"
