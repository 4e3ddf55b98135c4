"""Options: classes, targets, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.routing.options import RoutingOptions


def test_a_prompt_as_long_as_a_boundary_is_in_the_upper_class() -> None:
    options = RoutingOptions()
    lengths = [1, 16_383, 16_384, 65_535, 65_536, 262_143, 262_144, 1 << 20]
    assert [options.class_of(n) for n in lengths] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert options.num_classes == 4


def test_the_target_grows_with_the_prompt_unless_one_was_promised() -> None:
    options = RoutingOptions()
    assert options.ttft_target_s(16_384, None) == 3.0
    assert options.ttft_target_s(16_384, 0.5) == 0.5


@pytest.mark.parametrize(
    "values",
    [
        {"boundaries": (64, 16)},
        {"boundaries": (0, 16)},
        {"boundaries": (16, 16)},
        {"round_s": 0.0},
        {"max_moves": 0},
        {"min_gain": -0.1},
        {"starvation_s": float("nan")},
        {"reserve_share": 1.0},
        {"replicas": 0},
        {"temperature": -1.0},
        {"weights": {"queue": -1.0}},
        {"busy_at": 0},
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, Any]) -> None:
    [name] = values
    with pytest.raises(ValueError, match=name):
        RoutingOptions(**values)
