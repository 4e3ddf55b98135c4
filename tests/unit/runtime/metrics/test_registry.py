"""The registry of a process."""

import pytest

from runtime.metrics import MAX_LABEL_VALUES, Metric, Metrics
from runtime.metrics.registry import EXEMPLAR_INTERVAL


def test_counters_gauges_and_histograms_record() -> None:
    metrics = Metrics()
    metrics.count("disagg_redispatch_total", stage="decode", reason="PEER_GONE")
    metrics.count("disagg_redispatch_total", 2, stage="decode", reason="PEER_GONE")
    metrics.set("disagg_requests_running", 5, role="decode", tier="all")
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
    metrics.count("disagg_dropped_tokens_total", 7)
    data, content_type = metrics.exposition()
    assert b"disagg_dropped_tokens_total 7.0" in data
    assert content_type.startswith("text/plain")


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
        metrics.count("disagg_kv_events_published_total", type=f"type{number}")
    assert metrics.value("disagg_kv_events_published_total", type="other") == 5
    assert metrics.value("disagg_kv_events_published_total", type="type0") == 1


def samples(metrics: Metrics, name: str) -> set[str]:
    return {line for line in metrics.exposition()[0].decode().splitlines() if name in line} - {
        line for line in metrics.exposition()[0].decode().splitlines() if line[:1] == "#"
    }


def test_each_combination_that_can_be_begins_at_zero() -> None:
    row = Metric(
        name="disagg_x_total",
        kind="counter",
        help="x",
        labels=("outcome", "reason"),
        known=(
            {"outcome": ("ok",), "reason": ("",)},
            {"outcome": ("failed",), "reason": ("a", "b")},
        ),
    )
    assert samples(Metrics((row,)), "disagg_x_total") == {
        'disagg_x_total{outcome="ok",reason=""} 0.0',
        'disagg_x_total{outcome="failed",reason="a"} 0.0',
        'disagg_x_total{outcome="failed",reason="b"} 0.0',
    }


def test_a_process_says_what_only_it_knows() -> None:
    name = "disagg_slo_requests_total"
    metrics = Metrics(model="m")
    assert samples(metrics, name) == set()
    metrics.count(name, tier="short", verdict="good")
    metrics.expect(name, tier=["short", "long"])
    labels = f'{name}{{model_name="m",tier="short",verdict='
    assert f'{labels}"good"}} 1.0' in samples(metrics, name)
    assert f'{labels}"failed"}} 0.0' in samples(metrics, name)
    assert len(samples(metrics, name)) == 8
    with pytest.raises(ValueError, match=r"say which values \['tier'\] can have"):
        metrics.expect(name)


def test_a_name_is_declared_once() -> None:
    row = Metric(name="disagg_x_total", kind="counter", help="x")
    with pytest.raises(ValueError, match="declared twice"):
        Metrics((row, row))


def test_labels_with_one_value_are_filled_in() -> None:
    metrics = Metrics(model="tiny-v4", rank=3)
    metrics.set("disagg_decode_kv_tokens", 7)
    metrics.count("disagg_generated_tokens_total", 2)
    text = metrics.exposition()[0].decode()
    assert 'disagg_decode_kv_tokens{dp_rank="3"} 7.0' in text
    assert 'disagg_generated_tokens_total{model_name="tiny-v4"} 2.0' in text


def test_a_role_shows_its_rows_at_zero_and_others_once_they_are_recorded() -> None:
    metrics = Metrics(role="decode", model="m")
    assert 'disagg_handoff_total{outcome="corrupt"} 0.0' in metrics.exposition()[0].decode()
    assert "disagg_route_candidates" not in metrics.exposition()[0].decode()
    metrics.count("disagg_recording_dropped_total")
    assert "disagg_recording_dropped_total 1.0" in metrics.exposition()[0].decode()


@pytest.mark.parametrize("per_rank", [True, False])
def test_the_rank_of_a_step_is_told_on_request(per_rank: bool) -> None:
    metrics = Metrics(role="decode", rank=2, per_rank=per_rank)
    metrics.observe("disagg_decode_batch_size", 3)
    name = (
        'disagg_decode_batch_size_count{dp_rank="2"} 1.0'
        if per_rank
        else ("disagg_decode_batch_size_count 1.0")
    )
    assert name in metrics.exposition()[0].decode()


def test_exemplars_name_the_trace_where_they_are_asked_for() -> None:
    trace = ""
    metrics = Metrics(trace_id=lambda: trace)
    metrics.observe("disagg_handoff_duration_seconds", 0.1)
    trace = "0af7651916cd43dd8448eb211c80319c"
    metrics.observe("disagg_handoff_duration_seconds", 0.1)
    metrics.observe("disagg_handoff_bytes", 100)  # no latency
    data, content_type = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    ours = [line for line in data.decode().splitlines() if trace in line]
    assert {line.split("{")[0] for line in ours} == {
        "disagg_handoff_duration_seconds_bucket",
        "vllm:nixl_xfer_time_seconds_bucket",
    }
    assert trace not in metrics.exposition("text/plain")[0].decode()


def test_what_records_often_names_a_trace_now_and_then_and_a_rare_one_always() -> None:
    trace = ""
    metrics = Metrics(trace_id=lambda: trace)
    record = metrics.recorder("disagg_inter_token_latency_seconds")

    def named() -> set[str]:
        data, _ = metrics.exposition("application/openmetrics-text; version=1.0.0")
        lines = (line for line in data.decode().splitlines() if " # " in line)
        return {
            line.split('trace_id="')[1][:3] for line in lines if line.startswith("disagg_inter")
        }

    record(0.01)  # no trace
    for number in range(EXEMPLAR_INTERVAL + 2):
        trace = f"{number:03}"
        record(0.01)
        if number == EXEMPLAR_INTERVAL - 1:
            assert named() == {"000"}
    assert named() == {f"{EXEMPLAR_INTERVAL:03}"}
    trace = "abc"
    record(3.0)
    assert named() == {f"{EXEMPLAR_INTERVAL:03}", "abc"}
    assert metrics.value("disagg_inter_token_latency_seconds") == EXEMPLAR_INTERVAL + 4


def test_a_counter_follows_a_total_and_never_falls() -> None:
    metrics = Metrics()
    for total in (3, 5, 4, 6):
        metrics.follow("disagg_decode_steps_total", total)
    assert metrics.value("disagg_decode_steps_total") == 6


def test_gauges_are_brought_up_to_date_before_they_are_shown() -> None:
    metrics = Metrics()
    metrics.before_exposition(lambda: metrics.set("disagg_kv_leases", 4))
    assert metrics.snapshot()["disagg_kv_leases"] == 4


def test_aliases_can_be_left_out() -> None:
    metrics = Metrics(with_aliases=False)
    metrics.count("vllm:num_preemptions_total")
    assert b"vllm:" not in metrics.exposition()[0]


def test_a_value_is_summed_over_the_labels_that_are_left_out() -> None:
    metrics = Metrics()
    metrics.count("disagg_redispatch_total", stage="decode", reason="A")
    metrics.count("disagg_redispatch_total", stage="decode", reason="B")
    assert metrics.value("disagg_redispatch_total", stage="decode") == 2


def test_a_recorder_records_in_one_series() -> None:
    metrics = Metrics(with_aliases=False, trace_id=lambda: "ab" * 16)
    metrics.recorder("disagg_generated_tokens_total")(3)
    metrics.recorder("disagg_handoff_bytes")(70_000)
    metrics.recorder("disagg_inter_token_latency_seconds")(0.02)
    metrics.recorder("vllm:num_preemptions_total")(1)  # switched off
    assert metrics.value("disagg_generated_tokens_total") == 3
    assert metrics.value("disagg_handoff_bytes") == 1
    text = metrics.exposition("application/openmetrics-text")[0].decode()
    assert "ab" * 16 in text and "vllm:" not in text
    with pytest.raises(ValueError, match="has the labels"):
        metrics.recorder("disagg_stream_messages_total")
