"""Scaling a workload in time."""

from __future__ import annotations

import pytest

from simulator.traces.trace import Trace, TraceRequest

TRACE = Trace(
    name="three",
    requests=(
        TraceRequest(0.0, 10, 1),
        TraceRequest(2.0, 600, 2, (1, 2)),
        TraceRequest(6.0, 30, 3),
    ),
)


def test_span_and_rate() -> None:
    assert TRACE.span_s == 6.0
    assert TRACE.rate == 0.5
    assert Trace(name="one", requests=(TraceRequest(5.0, 1, 1),)).span_s == 1e-3


def test_faster_moves_arrivals_and_nothing_else() -> None:
    twice = TRACE.faster(2)
    assert [request.arrived_s for request in twice.requests] == [0.0, 1.0, 3.0]
    assert twice.requests[1].blocks == (1, 2)
    assert TRACE.faster(1) is TRACE


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_is_a_positive_number(factor: float) -> None:
    with pytest.raises(ValueError, match="positive number"):
        TRACE.faster(factor)
