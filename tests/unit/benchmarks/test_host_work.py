"""Parts of the host work add up, and late scheduling is measured in both directions."""

import pytest

from benchmarks import host_work
from benchmarks.host_work import Stopwatch, measure_late, measure_parts, model_engine
from benchmarks.host_work import waiting_engine as make_waiting

pytestmark = pytest.mark.medium


class Thing:
    def work(self, value: int) -> int:
        return value + 1


def test_a_stopwatch_adds_up_and_leaves_things_as_they_were() -> None:
    thing = Thing()
    watch = Stopwatch()
    watch.watch("part", thing, "work")
    assert [thing.work(1), thing.work(2)] == [2, 3]
    assert watch.seconds["part"] > 0
    before = dict(watch.seconds)
    watch.stop()
    assert thing.work(3) == 4
    assert watch.seconds == before


def test_parts_of_a_step_add_up() -> None:
    engine = model_engine(late=False)
    parts = measure_parts(engine, 2, 3)
    host = sum(parts[name] for name in ("vote", "schedule", "plan", "sample", "report", "rest"))
    assert host == pytest.approx(parts["host_us"], abs=1)
    assert all(value > 0 for value in parts.values())
    assert parts["inputs_us"] < parts["model_us"]
    assert parts["host_share"] == pytest.approx(
        parts["host_us"] / (parts["host_us"] + parts["model_us"]), abs=1e-3
    )
    assert not engine.has_work()


def test_late_scheduling_is_measured_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_work, "BATCHES", (1, 3))
    result = measure_late(make_waiting, 2, 3, prompt_tokens=1)
    assert list(result) == ["1", "3"]
    for line in result.values():
        # The runner waits, whatever is hidden beside it.
        assert line["on_quickest_ms"] >= 1e3 * host_work.DEVICE_STEP_S
        assert line["on_quickest_ms"] <= line["on_step_ms"]
        assert line["gain"] < 0.5
