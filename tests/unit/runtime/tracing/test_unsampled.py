"""Spans of traces that nobody records."""

from runtime.telemetry import NO_SPAN, current, current_trace_id
from runtime.tracing.propagation import TraceContext
from runtime.tracing.unsampled import UnsampledSpan
from tests.fakes.spans import recorded

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_an_unsampled_request_goes_on_unsampled() -> None:
    found = recorded(samples=False)
    headers = [("traceparent", PARENT[:-2] + "00"), ("baggage", "disagg.experiment=a,b=c")]
    with found.tracer.serve("a.B/C", headers) as span:
        assert isinstance(span, UnsampledSpan)
        assert current() is span
        with span.child("prefill.lookup") as child:
            assert child is NO_SPAN
            assert current() is span
        passed_on = dict(span.call("d.E/F", "h:1").headers())
    assert passed_on["traceparent"].startswith(PARENT[:36])
    assert passed_on["traceparent"].endswith("-00")
    assert passed_on["baggage"] == "disagg.experiment=a"
    assert current() is NO_SPAN
    assert found.spans == ()


def test_it_may_be_left_twice_and_is_never_recorded() -> None:
    span = UnsampledSpan(TraceContext(trace_id=1, span_id=2, is_sampled=False), {})
    with span:
        assert current_trace_id() == ""
        assert not current().is_recording
    span.__exit__(None, None, None)
    assert current() is NO_SPAN
