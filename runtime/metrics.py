"""Every metric of the project in one table, and the registry of one process.

Services record by name; a name or a label that is not in the table is an error at once, not a new
time series. No label holds an id, and a label with more than `MAX_LABEL_VALUES` values continues as
`other`. Names are public: changing one breaks dashboards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import prometheus_client

MAX_LABEL_VALUES = 100
OVERFLOW_VALUE = "other"

STORE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20),
    *(40, 80, 160, 640, 2560),
)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40),
    80,
)
PHASE_BUCKETS = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
    7680,
)
BYTE_BUCKETS = tuple(float(64 * 1024 * 4**k) for k in range(9))

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="counter", help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind="gauge", help=text, labels=labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name=name, kind="histogram", help=text, labels=labels, buckets=buckets)


TABLE: tuple[Metric, ...] = (
    _counter("disagg_requests_total", "Requests ended.", "outcome", "reason"),
    _gauge("disagg_requests_running", "Requests that run.", "role"),
    _gauge("disagg_requests_waiting", "Requests that wait.", "role"),
    _histogram(
        "gen_ai_server_time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS
    ),
    _histogram("gen_ai_server_time_per_output_token_seconds", "Mean gap of tokens.", ITL_BUCKETS),
    _histogram("disagg_phase_duration_seconds", "Parts of a request.", PHASE_BUCKETS, "phase"),
    _counter("disagg_prompt_tokens_total", "Prompt tokens by where their KV came from.", "source"),
    _counter("disagg_generated_tokens_total", "Tokens generated."),
    _counter("disagg_dropped_tokens_total", "Tokens that came twice or from an old attempt."),
    _counter("disagg_admission_rejections_total", "Requests refused at the door.", "reason"),
    _counter("disagg_route_decisions_total", "Placements.", "policy", "tier", "outcome"),
    _gauge("disagg_tier_engines", "Prefill engines of a length class.", "tier"),
    _gauge("disagg_tier_quota_tokens", "Prompt tokens handed out in the last round.", "tier"),
    _gauge("disagg_tier_backlog_tokens", "Prompt tokens whose prefill is not over.", "tier"),
    _gauge("disagg_decode_imbalance_ratio", "Largest over mean load of ranks.", "axis"),
    _counter("disagg_recording_dropped_total", "Lines of a recording that were dropped."),
    _counter("disagg_redispatch_total", "Requests sent to another member.", "stage", "reason"),
    _counter("disagg_cancellations_total", "Requests cancelled.", "stage", "origin"),
    _counter("disagg_prefix_fallback_total", "Stored prefixes given up, by cause.", "cause"),
    _counter("disagg_handoff_total", "Hand-offs read by decode.", "outcome"),
    _counter("disagg_prefetch_total", "Hand-offs read before their ticket, by end.", "outcome"),
    _counter("disagg_prefetch_blocks_total", "Blocks read before their ticket.", "result"),
    _histogram("disagg_handoff_duration_seconds", "Ticket to verified state.", STORE_BUCKETS),
    _histogram("disagg_handoff_bytes", "Bytes of a hand-off.", BYTE_BUCKETS),
    _counter("disagg_kv_lookup_blocks_total", "Blocks looked up.", "result"),
    _counter("disagg_kv_written_bytes_total", "Bytes written to the store.", "component"),
    _counter("disagg_kv_read_bytes_total", "Bytes read from the store.", "component"),
    _counter("disagg_kv_checksum_failures_total", "Stored values that failed.", "component"),
    _gauge("disagg_kv_leases", "Leases held by this process."),
    _gauge("disagg_decode_kv_tokens", "KV tokens in use."),
    _gauge("disagg_decode_kv_capacity_tokens", "KV tokens that fit."),
    _counter("disagg_decode_placeholder_steps_total", "Steps without a sequence."),
    _histogram(
        "rpc_server_call_duration_seconds",
        "Calls served.",
        STORE_BUCKETS,
        "rpc_method",
        "rpc_response_status_code",
    ),
    _histogram(
        "http_server_request_duration_seconds",
        "HTTP calls served.",
        STORE_BUCKETS,
        "http_request_method",
        "http_route",
        "http_response_status_code",
    ),
    _counter("disagg_http_unknown_fields_total", "Fields of bodies without a meaning.", "field"),
    _counter("disagg_internal_errors_total", "Exceptions nobody translated.", "method"),
    _counter("disagg_readiness_transitions_total", "Changes of readiness.", "to", "cause"),
    _gauge("disagg_worker_ready", "1 while this process takes new work.", "role"),
    _gauge("disagg_draining", "1 while this process drains.", "role"),
    _gauge("disagg_build_info", "Always 1.", "role", "version", "fingerprint"),
)

_MAKERS = {"counter": prometheus_client.Counter, "gauge": prometheus_client.Gauge}
_Collector = prometheus_client.Counter | prometheus_client.Gauge | prometheus_client.Histogram


class Metrics:
    """The metrics of one process. Thread-safe; make one per process and pass it in."""

    def __init__(self, table: Iterable[Metric] = TABLE) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._rows: dict[str, Metric] = {}
        self._collectors: dict[str, _Collector] = {}
        self._seen: dict[tuple[str, str], set[str]] = {}
        self._lock = threading.Lock()
        for row in table:
            if row.name in self._rows:
                raise ValueError(f"metric {row.name} is declared twice")
            self._rows[row.name] = row
            if row.kind == "histogram":
                self._collectors[row.name] = prometheus_client.Histogram(
                    row.name, row.help, row.labels, buckets=row.buckets, registry=self._registry
                )
            else:
                self._collectors[row.name] = _MAKERS[row.kind](
                    row.name, row.help, row.labels, registry=self._registry
                )

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter; raises ValueError for an unknown name, kind or label."""
        collector = self._collector(name, "counter", labels)
        assert isinstance(collector, prometheus_client.Counter)
        collector.inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge; raises ValueError for an unknown name, kind or label."""
        collector = self._collector(name, "gauge", labels)
        assert isinstance(collector, prometheus_client.Gauge)
        collector.set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram; raises ValueError for an unknown name, kind or label."""
        collector = self._collector(name, "histogram", labels)
        assert isinstance(collector, prometheus_client.Histogram)
        collector.observe(value)

    def value(self, name: str, **labels: str) -> float:
        """Current value of a counter or gauge, or the number of observations of a histogram."""
        row = self._row(name)
        suffix = "_count" if row.kind == "histogram" else ""
        found = self._registry.get_sample_value(name + suffix, labels)
        return 0.0 if found is None else found

    def snapshot(self) -> dict[str, float]:
        """All values, as `name` or `name{label=value,...}`; histograms as their count and sum."""
        values: dict[str, float] = {}
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name.endswith(("_bucket", "_created")):
                    continue
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return values

    def exposition(self) -> bytes:
        """The Prometheus text form of all metrics."""
        return prometheus_client.generate_latest(self._registry)

    def _row(self, name: str) -> Metric:
        row = self._rows.get(name)
        if row is None:
            raise ValueError(f"metric {name} is not in the table of runtime.metrics")
        return row

    def _collector(self, name: str, kind: Kind, labels: Mapping[str, str]) -> _Collector:
        row = self._row(name)
        if row.kind != kind:
            raise ValueError(f"metric {name} is a {row.kind}, not a {kind}")
        if set(labels) != set(row.labels):
            raise ValueError(
                f"metric {name} has the labels {list(row.labels)}, not {sorted(labels)}"
            )
        collector = self._collectors[name]
        if not labels:
            return collector
        return collector.labels(**{key: self._bound(name, key, labels[key]) for key in row.labels})

    def _bound(self, name: str, label: str, value: str) -> str:
        with self._lock:
            seen = self._seen.setdefault((name, label), set())
            if value in seen:
                return value
            if len(seen) >= MAX_LABEL_VALUES:
                return OVERFLOW_VALUE
            seen.add(value)
            return value
