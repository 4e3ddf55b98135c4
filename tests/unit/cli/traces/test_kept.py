"""Whole traces in bounded memory."""

from cli.traces.kept import KeptTraces
from disagg.v1 import traces_pb2
from tests.fakes.trace_spans import a_span


def spans_of(trace: int, count: int = 3) -> list[traces_pb2.TraceSpan]:
    return [
        a_span(100 * trace + n, "x", trace=trace, disagg__request_id=f"r-{trace}")
        for n in range(1, count + 1)
    ]


def test_a_trace_is_found_by_any_span_that_names_the_request() -> None:
    kept = KeptTraces()
    kept.add([a_span(1, "balancer.text"), a_span(2, "front", disagg__request_id="r-1")])
    kept.add([a_span(3, "late", parent=2), a_span(4, "other", trace=2)])
    assert sorted(span.name for span in kept.find("r-1")) == ["balancer.text", "front", "late"]
    assert kept.find("r-2") == []
    assert len(kept) == 2


def test_several_traces_of_one_request_are_all_found() -> None:
    kept = KeptTraces()
    for trace in (1, 2):
        kept.add([a_span(trace, "front", trace=trace, disagg__request_id="r")])
    assert len(kept.find("r")) == 2


def test_what_comes_twice_is_kept_once() -> None:
    kept = KeptTraces()
    kept.add(spans_of(1))
    before = kept.num_bytes
    kept.add(spans_of(1))
    assert kept.num_bytes == before
    assert len(kept.find("r-1")) == 3


def test_the_trace_that_waited_longest_goes_first_and_as_a_whole() -> None:
    one = KeptTraces()
    one.add(spans_of(1))
    kept = KeptTraces(max_bytes=2 * one.num_bytes + 100)
    kept.add(spans_of(1))
    kept.add(spans_of(2))
    kept.add(spans_of(1))  # the same again: a sign of life
    kept.add(spans_of(3))
    assert kept.find("r-2") == []
    assert len(kept.find("r-1")) == len(kept.find("r-3")) == 3
    assert kept.num_dropped == 3
    assert kept.num_bytes <= 2 * one.num_bytes + 100


def test_a_trace_that_is_too_large_alone_loses_spans_and_no_other() -> None:
    kept = KeptTraces(max_bytes=5_000)
    kept.add(spans_of(1, count=200))
    assert kept.num_bytes <= 5_000
    assert kept.num_dropped > 150
    assert len(kept.find("r-1")) + kept.num_dropped == 200


def test_memory_is_bounded_whatever_comes() -> None:
    kept = KeptTraces(max_bytes=20_000)
    for trace in range(1, 300):
        kept.add(spans_of(trace))
    assert kept.num_bytes <= 20_000
    assert len(kept._by_request) == len(kept)
