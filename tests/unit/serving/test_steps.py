"""Steps as traces of their own: one in so many, pointing to those it served."""

from contextvars import Context, copy_context

import pytest

from runtime.clock import ManualClock
from runtime.telemetry import NO_TRACER
from runtime.tracing.table import MAX_STEP_LINKS
from serving.steps import step_spans, together
from tests.fakes.spans import facts, links, parent_id, recorded, served, span_id


def test_off_unless_there_is_an_interval_and_somewhere_to_send_to() -> None:
    assert step_spans(recorded().tracer, 0, ManualClock()) is None
    assert step_spans(NO_TRACER, 1000, ManualClock()) is None


def test_one_step_in_so_many_is_a_root_with_links_to_its_requests() -> None:
    clock = ManualClock(now=10.0)
    found = recorded(clock=clock)
    observe = step_spans(found.tracer, 3, clock)
    assert observe is not None
    with served(found):
        inside = copy_context()
    outside = copy_context()  # a request that is not recorded
    for _ in range(7):
        observe(0.5, [inside, outside])
    first, second = found.named("engine.step")
    assert parent_id(first) == ""
    assert first.context.trace_id != second.context.trace_id
    assert facts(first) == {"disagg.sequences": 2}
    assert links(first) == [("step_of", span_id(found.one("a.B/C")))]
    assert (first.end_time or 0) - (first.start_time or 0) == 500_000_000


def test_links_are_bounded() -> None:
    found, clock = recorded(), ManualClock()
    observe = step_spans(found.tracer, 1, clock)
    assert observe is not None
    with served(found):
        observe(0.1, [copy_context()] * 100)
    assert len(links(found.one("engine.step"))) == MAX_STEP_LINKS


@pytest.mark.parametrize("number", [0, 1, 2])
def test_observers_are_told_together(number: int) -> None:
    told: list[int] = []

    def note(_seconds: float, contexts: list[Context]) -> None:
        told.append(len(contexts))

    observe = together(None, *[note] * number)  # type: ignore[list-item]
    assert (observe is None) == (number == 0)
    if observe is not None:
        observe(0.1, [copy_context()])
    assert told == [1] * number
