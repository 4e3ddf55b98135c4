"""The current span, and spans that nobody records."""

import asyncio
import contextvars

from runtime.telemetry import NO_SPAN, NO_TRACER, current, current_trace_id
from tests.fakes.spans import recorded, served


def test_without_a_trace_nothing_happens() -> None:
    span = current()
    assert span is NO_SPAN
    assert span.child("prefill.lookup") is NO_SPAN
    assert span.call("a.B/C", "127.0.0.1:1") is NO_SPAN
    assert span.headers() == ()
    assert span.context is None
    assert not span.is_recording
    assert current_trace_id() == ""
    with span.child("prefill.lookup") as child:
        child.set({"disagg.attempt": 1})
        child.event("chunk")
        child.link(None, "retry_of")
        assert current() is NO_SPAN
    child.fail(ValueError())
    child.end()


def test_the_tracer_of_a_process_that_exports_nothing() -> None:
    assert not NO_TRACER.is_on
    assert NO_TRACER.endpoint == ""
    assert NO_TRACER.serve("a.B/C", [("traceparent", "x")]) is NO_SPAN
    assert NO_TRACER.root("engine.step") is NO_SPAN
    NO_TRACER.close()


def test_the_current_span_is_the_innermost_and_comes_back() -> None:
    found = recorded()
    with served(found) as outer:
        assert current() is outer
        with outer.child("prefill.lookup") as inner:
            assert current() is inner
        assert current() is outer
        with inner.active():
            assert current() is inner
        assert current() is outer
    assert current() is NO_SPAN


def test_the_trace_id_is_told_only_of_what_is_recorded() -> None:
    with served(recorded()) as span:
        assert span.context is not None
        assert current_trace_id() == f"{span.context.trace_id:032x}"
    with served(recorded(samples=False)):
        assert current_trace_id() == ""


async def test_tasks_see_the_span_they_were_started_in() -> None:
    found = recorded()

    async def look() -> object:
        return current()

    with served(found) as span:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(look())
        assert task.result() is span
    assert contextvars.copy_context().run(current) is NO_SPAN
