"""W3C context: what gets in, what goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tracing.propagation import (
    BAGGAGE_KEYS,
    MAX_BAGGAGE_CHARS,
    TraceContext,
    parse_baggage,
    parse_traceparent,
    read_headers,
    write_headers,
)

# The example of the W3C recommendation, "Trace Context", section 3.2.
EXAMPLE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_example_of_the_recommendation() -> None:
    context = parse_traceparent(EXAMPLE)
    assert context == TraceContext(
        trace_id=0x0AF7651916CD43DD8448EB211C80319C, span_id=0xB7AD6B7169203331, is_sampled=True
    )
    assert str(context) == EXAMPLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        EXAMPLE.upper(),
        EXAMPLE + "-more",  # version 00 ends here
        "ff" + EXAMPLE[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        EXAMPLE[:-1] + "g",
    ],
)
def test_what_is_no_traceparent_begins_a_new_trace(text: str) -> None:
    assert parse_traceparent(text) is None
    assert read_headers([("traceparent", text)]).context is None


def test_later_versions_may_say_more_and_only_the_sampled_flag_counts() -> None:
    later = parse_traceparent("01" + EXAMPLE[2:-2] + "08-what-ever")
    assert later is not None
    assert not later.is_sampled


def test_names_of_headers_in_any_case_and_values_in_bytes() -> None:
    incoming = read_headers([("TraceParent", EXAMPLE.encode()), ("tracestate", "a=1")])
    assert incoming.context is not None
    assert incoming.context.state == "a=1"


def test_two_parents_are_none() -> None:
    assert read_headers([("traceparent", EXAMPLE)] * 2).context is None


def test_a_state_that_is_long_or_no_header_is_dropped() -> None:
    for state in ("x" * 513, "a=\n1"):
        context = read_headers([("traceparent", EXAMPLE), ("tracestate", state)]).context
        assert context is not None
        assert context.state == ""


def test_only_allowed_baggage_gets_in() -> None:
    text = "user=secret, disagg.priority = 3;ttl=5,disagg.experiment=a%20b,prompt=hello"
    assert parse_baggage(text) == {"disagg.priority": "3", "disagg.experiment": "a b"}
    assert parse_baggage("disagg.priority=" + "9" * (MAX_BAGGAGE_CHARS + 1)) == {}


def test_only_allowed_baggage_goes_on() -> None:
    pairs = dict(write_headers(None, {"disagg.priority": "3", "user": "secret"}))
    assert pairs == {"baggage": "disagg.priority=3"}


contexts = st.builds(
    TraceContext,
    trace_id=st.integers(1, 2**128 - 1),
    span_id=st.integers(1, 2**64 - 1),
    is_sampled=st.booleans(),
    state=st.sampled_from(["", "a=1", "a=1,b=2"]),
)
baggages = st.dictionaries(st.sampled_from(BAGGAGE_KEYS), st.text(max_size=20))


@given(contexts, baggages)
def test_what_is_written_is_read_again(context: TraceContext, baggage: dict[str, str]) -> None:
    incoming = read_headers(write_headers(context, baggage))
    assert incoming.context == context
    assert incoming.baggage == baggage


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_text_breaks_the_reader(parent: str, baggage: str) -> None:
    incoming = read_headers([("traceparent", parent), ("baggage", baggage)])
    assert set(incoming.baggage) <= set(BAGGAGE_KEYS)
