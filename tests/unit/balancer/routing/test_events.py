"""Events are values that can be written down."""

from __future__ import annotations

import dataclasses
import typing

from balancer.routing.events import Event, PrefillEnded, RoundBegan


def test_every_event_says_when() -> None:
    for kind in typing.get_args(Event):
        assert "at" in {field.name for field in dataclasses.fields(kind)}
        assert kind.__dataclass_params__.frozen


def test_events_compare_by_value() -> None:
    assert PrefillEnded(request_id="r", at=1.0) == PrefillEnded(request_id="r", at=1.0)
    assert RoundBegan(at=1.0, engines=(("p", 0.0, 0),), longest_tokens=1) != RoundBegan(
        at=1.0, engines=(), longest_tokens=1
    )
