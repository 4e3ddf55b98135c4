"""A group's steps are timed with and without late scheduling, over the transports asked for."""

import pytest

from benchmarks import group_steps


@pytest.mark.medium
def test_both_settings_are_timed_by_transport() -> None:
    result = group_steps.measure(num_ranks=2, backends=("shm",), batch=1, steps=2)
    assert (result["ranks"], result["batch"]) == (2, 1)
    assert set(result) == {"ranks", "batch", "shm"}
    line = result["shm"]
    assert line["off_step_ms"] > 0
    assert line["gain"] == pytest.approx(1 - line["on_step_ms"] / line["off_step_ms"], abs=2e-3)


def test_a_group_that_fails_is_an_error() -> None:
    with pytest.raises(ValueError, match="'smoke' is unknown"):
        group_steps.measure(num_ranks=2, backends=("smoke",))
