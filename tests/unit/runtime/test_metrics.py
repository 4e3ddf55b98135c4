"""The metric table and the registry of a process."""

import pytest

from runtime.metrics import MAX_LABEL_VALUES, TABLE, Metric, Metrics


def test_names_follow_the_rules() -> None:
    for row in TABLE:
        assert row.name.startswith(("disagg_", "gen_ai_", "http_", "rpc_")), row.name
        assert (row.kind == "counter") == row.name.endswith("_total"), row.name
        assert not {"request_id", "tenant", "pod", "member"} & set(row.labels), row.name
        assert (row.kind == "histogram") == bool(row.buckets), row.name
        assert list(row.buckets) == sorted(set(row.buckets)), row.name


def test_counters_gauges_and_histograms_record() -> None:
    metrics = Metrics()
    metrics.count("disagg_redispatch_total", stage="decode", reason="PEER_GONE")
    metrics.count("disagg_redispatch_total", 2, stage="decode", reason="PEER_GONE")
    metrics.set("disagg_requests_running", 5, role="decode")
    metrics.observe("disagg_handoff_bytes", 70_000)
    assert metrics.value("disagg_redispatch_total", stage="decode", reason="PEER_GONE") == 3
    assert metrics.value("disagg_requests_running", role="decode") == 5
    assert metrics.value("disagg_handoff_bytes") == 1
    assert metrics.value("disagg_redispatch_total", stage="prefill", reason="PEER_GONE") == 0


def test_the_snapshot_names_values_with_their_labels() -> None:
    metrics = Metrics()
    metrics.count("disagg_prefix_fallback_total", cause="evicted")
    metrics.observe("disagg_handoff_bytes", 100.0)
    snapshot = metrics.snapshot()
    assert snapshot["disagg_prefix_fallback_total{cause=evicted}"] == 1
    assert snapshot["disagg_handoff_bytes_sum"] == 100
    assert not [name for name in snapshot if "_bucket" in name or "_created" in name]


def test_the_exposition_is_prometheus_text() -> None:
    metrics = Metrics()
    metrics.count("disagg_generated_tokens_total", 7)
    assert b"disagg_generated_tokens_total 7.0" in metrics.exposition()


def test_two_processes_in_one_do_not_share() -> None:
    first, second = Metrics(), Metrics()
    first.count("disagg_generated_tokens_total")
    assert second.value("disagg_generated_tokens_total") == 0


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="disagg_new_total is not in the table"):
        Metrics().count("disagg_new_total")


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="is a gauge, not a counter"):
        Metrics().count("disagg_kv_leases")


@pytest.mark.parametrize("labels", [{}, {"role": "a", "request_id": "b"}])
def test_other_labels_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Metrics().set("disagg_requests_running", 1, **labels)


def test_a_label_without_bound_ends_in_other() -> None:
    metrics = Metrics()
    for number in range(MAX_LABEL_VALUES + 5):
        metrics.count("disagg_prefix_fallback_total", cause=f"cause{number}")
    assert metrics.value("disagg_prefix_fallback_total", cause="other") == 5
    assert metrics.value("disagg_prefix_fallback_total", cause="cause0") == 1


def test_a_name_is_declared_once() -> None:
    row = Metric(name="disagg_x_total", kind="counter", help="x")
    with pytest.raises(ValueError, match="declared twice"):
        Metrics((row, row))
