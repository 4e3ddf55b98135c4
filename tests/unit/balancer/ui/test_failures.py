"""Failures by cause, out of the real counters."""

from __future__ import annotations

from balancer.ui.failures import KINDS, MAX_LINES, failures
from runtime.metrics import Metrics


def test_every_kind_is_a_counter_that_exists() -> None:
    metrics = Metrics()
    for kind in KINDS:
        assert metrics.snapshot() is not None
        metrics._row(kind.metric)  # raises for a name that is not in the table


def test_causes_are_summed_over_what_the_page_does_not_show() -> None:
    metrics = Metrics()
    for endpoint in ("chat", "generate"):
        metrics.count(
            "disagg_requests_total", endpoint=endpoint, outcome="failed", reason="PEER_GONE"
        )
        metrics.count("disagg_requests_total", 5, endpoint=endpoint, outcome="stop", reason="")
    metrics.count("disagg_redispatch_total", 2, stage="decode", reason="peer_gone")
    metrics.count("disagg_redispatch_total", 3, stage="prefill", reason="evicted")
    metrics.count("disagg_admission_rejections_total", reason="QUEUE_FULL")
    metrics.count("disagg_prefetch_total", 4, outcome="draining")
    told = [
        (line["what"], line["where"], line["cause"], line["count"])
        for line in failures(metrics.snapshot())
    ]
    assert told == [
        ("repeated", "prefill", "evicted", 3),
        ("repeated", "decode", "peer_gone", 2),
        ("failed", "", "PEER_GONE", 2),
        ("refused", "", "QUEUE_FULL", 1),
        ("read ahead given up", "", "draining", 4),
    ]


def test_nothing_is_no_line_and_many_are_bounded() -> None:
    assert failures(Metrics().snapshot()) == []
    values = {f"disagg_admission_rejections_total{{reason=r{i}}}": 1.0 for i in range(99)}
    assert len(failures(values)) == MAX_LINES
