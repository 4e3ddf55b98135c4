"""Series of one metric under another name."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics
from runtime.metrics.rows import Alias
from runtime.metrics.views import view_of


def shown(alias: Alias, source: Counter | Histogram) -> dict[str, float]:
    family = view_of(alias, next(iter(source.collect())), {"engine": "0"})
    return {
        sample.name + "".join(f",{k}={v}" for k, v in sample.labels.items()): sample.value
        for sample in family.samples
    }


def alias(name: str, **more: object) -> Alias:
    return Alias(name=name, source="s", help="x", roles=(), **more)  # type: ignore[arg-type]


def test_series_are_summed_over_labels_that_are_gone() -> None:
    counter = Counter("s", "x", ["outcome", "reason"], registry=CollectorRegistry())
    counter.labels("ok", "a").inc(2)
    counter.labels("ok", "b").inc(3)
    counter.labels("bad", "a").inc(4)
    assert shown(alias("v_total", keep={"result": "outcome"}), counter) == {
        "v_total,engine=0,result=ok": 5,
        "v_total,engine=0,result=bad": 4,
    }
    assert shown(alias("v_total", where={"outcome": "!ok"}), counter) == {"v_total,engine=0": 4}


def test_a_histogram_keeps_its_buckets_and_may_be_counted() -> None:
    histogram = Histogram("s", "x", ["op"], buckets=(1, 2), registry=CollectorRegistry())
    histogram.labels("a").observe(1.5)
    histogram.labels("b").observe(5)
    found = shown(alias("v"), histogram)
    assert found == {
        "v_bucket,engine=0,le=1.0": 0,
        "v_bucket,engine=0,le=2.0": 1,
        "v_bucket,engine=0,le=+Inf": 2,
        "v_count,engine=0": 2,
        "v_sum,engine=0": 6.5,
    }
    assert shown(alias("v_total", keep={"op": "op"}), histogram) == {
        "v_total,engine=0,op=a": 1,
        "v_total,engine=0,op=b": 1,
    }


def test_the_page_with_aliases_can_be_parsed() -> None:
    metrics = Metrics(model="m")
    metrics.observe("disagg_phase_duration_seconds", 2.0, phase="admit")
    metrics.observe("disagg_phase_duration_seconds", 3.0, phase="route")
    families = {
        family.name: family
        for family in text_string_to_metric_families(metrics.exposition()[0].decode())
    }
    queue = families["vllm:request_queue_time_seconds"]
    assert queue.type == "histogram"
    sums = [sample.value for sample in queue.samples if sample.name.endswith("_sum")]
    assert sums == [2.0]
