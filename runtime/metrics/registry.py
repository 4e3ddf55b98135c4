"""The metrics of one process: recorded by name, held to the table.

A name or a label that is not in the table is an error at once, not a new time series. No label
holds an id, and a label with more than `MAX_LABEL_VALUES` values continues as `other`.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping

import prometheus_client
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.exposition import ALLOWUTF8

from runtime.metrics.aliases import ALIASES
from runtime.metrics.rows import AUTOMATIC, Kind, Metric
from runtime.metrics.table import TABLE
from runtime.metrics.views import AliasView

MAX_LABEL_VALUES = 100
OVERFLOW_VALUE = "other"
PROVIDER = "disagg"
EXEMPLAR_INTERVAL = 16
"""Observations of one series between two exemplars of a bucket, where they are recorded often."""

_MAKERS = {"counter": prometheus_client.Counter, "gauge": prometheus_client.Gauge}
# When a series began is of no use here, and would double their number.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_Collector = prometheus_client.Counter | prometheus_client.Gauge | prometheus_client.Histogram


def _no_trace() -> str:
    return ""


def _nothing(_value: float) -> None:
    """An alias that is switched off."""


class Metrics:
    """The metrics of one process. Thread-safe; make one per process and pass it in.

    Args:
        table: The rows.
        role: Of the process: its rows are there from the start, others once they are recorded;
            empty: all are.
        model: Name of the model, for the labels of that meaning.
        rank: Data-parallel rank.
        per_rank: Rows that may have the label `dp_rank` have it.
        with_aliases: Names of vLLM are there too; otherwise recording them does nothing.
        trace_id: Trace that the caller is in, 32 hexadecimal digits, or an empty text; for
            exemplars.
    """

    def __init__(
        self,
        table: Iterable[Metric] = TABLE,
        *,
        role: str = "",
        model: str = "",
        rank: int = 0,
        per_rank: bool = False,
        with_aliases: bool = True,
        trace_id: Callable[[], str] = _no_trace,
    ) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.trace_id = trace_id
        self._per_rank = per_rank
        self._with_aliases = with_aliases
        self._automatic = {
            "model_name": model,
            "gen_ai_request_model": model,
            "gen_ai_provider_name": PROVIDER,
            "dp_rank": str(rank),
            "engine": str(rank),
        }
        self._rows: dict[str, Metric] = {}
        self._collectors: dict[str, _Collector] = {}
        self._children: dict[tuple[str, ...], _Collector] = {}
        self._seen: dict[tuple[str, str], set[str]] = {}
        self._totals: dict[tuple[str, ...], float] = {}
        self._before: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        for row in table:
            if row.name in self._rows:
                raise ValueError(f"metric {row.name} is declared twice")
            self._rows[row.name] = row
        for row in self._rows.values():
            if (not role or role in row.roles) and (with_aliases or not row.is_alias):
                self._open(row, role)
        if with_aliases:
            shown = [alias for alias in ALIASES if not role or role in alias.roles]
            self.registry.register(AliasView(shown, self._collectors.get, self._alias_labels))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter; raises ValueError for an unknown name, kind or label."""
        child = self._child(name, "counter", labels)
        if child is not None:
            assert isinstance(child, prometheus_client.Counter)
            child.inc(amount)

    def follow(self, name: str, total: float, **labels: str) -> None:
        """Raise a counter to a total that something else counts; never lowers it."""
        key = (name, *labels.values())
        with self._lock:
            before = self._totals.get(key, 0.0)
            self._totals[key] = max(before, total)
        if total > before:
            self.count(name, total - before, **labels)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge; raises ValueError for an unknown name, kind or label."""
        child = self._child(name, "gauge", labels)
        if child is not None:
            assert isinstance(child, prometheus_client.Gauge)
            child.set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram; raises ValueError for an unknown name, kind or label."""
        child = self._child(name, "histogram", labels)
        if child is not None:
            assert isinstance(child, prometheus_client.Histogram)
            trace_id = self.trace_id() if self._rows[name].has_exemplars else ""
            child.observe(value, {"trace_id": trace_id} if trace_id else None)

    def recorder(self, name: str, **labels: str) -> Callable[[float], None]:
        """What records in one series of a counter or histogram; for places that do it all the time.

        A bucket of a histogram whose exemplar is younger than `EXEMPLAR_INTERVAL` observations of
        the series keeps it.

        Raises:
            ValueError: As `count` and `observe`.
        """
        row = self._row(name)
        child = self._child(name, row.kind, labels)
        if isinstance(child, prometheus_client.Counter):
            return child.inc
        if not isinstance(child, prometheus_client.Histogram):
            return _nothing
        if not row.has_exemplars:
            return child.observe
        observe, buckets = child.observe, row.buckets
        # An exemplar costs twice what an observation does and is seen once a scrape, if at all. So
        # a bucket that is rarely hit names every trace, and a common one a trace now and then.
        noted = [-EXEMPLAR_INTERVAL] * (len(buckets) + 1)
        counted = itertools.count()

        def record(value: float) -> None:
            number, bucket = next(counted), bisect.bisect_left(buckets, value)
            if number - noted[bucket] < EXEMPLAR_INTERVAL or not (trace_id := self.trace_id()):
                observe(value)
                return
            noted[bucket] = number
            observe(value, {"trace_id": trace_id})

        return record

    def expect(self, name: str, **values: Iterable[str]) -> None:
        """Begins series at zero, for labels whose values only this process knows.

        A counter that appears with its first event has no rate for it, so whatever came in one
        burst would never be seen.

        Args:
            values: Of those labels; labels that the table knows values of have these too.

        Raises:
            ValueError: An unknown name, or a label without values.
        """
        row = self._row(name)
        if row.is_alias and not self._with_aliases:
            return
        given = {label: tuple(several) for label, several in values.items()}
        for known in row.known or ({},):
            named = {**known, **given}
            if missing := [label for label in self._told(row) if label not in named]:
                raise ValueError(f"metric {name}: say which values {missing} can have")
            self._begin(row, named)

    def before_exposition(self, update: Callable[[], None]) -> None:
        """Has gauges brought up to date whenever somebody asks; called on the asking thread."""
        self._before.append(update)

    def value(self, name: str, **labels: str) -> float:
        """Sum of a counter or gauge over all series with these labels; observations of a histogram.

        Raises:
            ValueError: An unknown name.
        """
        row = self._row(name)
        collector = self._collectors.get(name)
        if collector is None:
            return 0.0
        wanted = name + ("_count" if row.kind == "histogram" else "")
        return sum(
            sample.value
            for family in collector.collect()
            for sample in family.samples
            if sample.name == wanted and labels.items() <= sample.labels.items()
        )

    def snapshot(self) -> dict[str, float]:
        """All values, as `name` or `name{label=value,...}`; histograms as their count and sum."""
        self._update()
        values: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.endswith(("_bucket", "_created")):
                    continue
                labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
                values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return values

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in the form that the header `Accept` asks for, and its content type.

        Exemplars are in OpenMetrics only, which has to be asked for.
        """
        self._update()
        kinds = {part.partition(";")[0].strip() for part in accept.split(",")}
        if "application/openmetrics-text" in kinds:
            # Our names need no escape anywhere. The library's default replaces the colon of
            # `vllm:` in samples, though not in their families.
            data: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
                self.registry, ALLOWUTF8, "1.0.0"
            )
            return data, openmetrics.CONTENT_TYPE_LATEST
        return prometheus_client.generate_latest(
            self.registry
        ), prometheus_client.CONTENT_TYPE_PLAIN_0_0_4

    def _update(self) -> None:
        for update in self._before:
            update()

    def _row(self, name: str) -> Metric:
        row = self._rows.get(name)
        if row is None:
            raise ValueError(f"metric {name} is not in the table of runtime.metrics")
        return row

    def _labels_of(self, row: Metric) -> tuple[str, ...]:
        return (*row.labels, "dp_rank") if row.per_rank and self._per_rank else row.labels

    def _alias_labels(self) -> dict[str, str]:
        return {name: self._automatic[name] for name in ("model_name", "engine")}

    def _register(self, row: Metric) -> None:
        labels = self._labels_of(row)
        if row.kind == "histogram":
            self._collectors[row.name] = prometheus_client.Histogram(
                row.name, row.help, labels, buckets=row.buckets, registry=self.registry
            )
        else:
            make = _MAKERS[row.kind]
            self._collectors[row.name] = make(row.name, row.help, labels, registry=self.registry)

    def _open(self, row: Metric, role: str) -> None:
        """Registers a row, and those of its series whose label values are known."""
        self._register(row)
        told = self._told(row)
        # A gauge says what is: it comes with the first look.
        own = {"role": (role,)} if role and row.kind == "counter" else {}
        for known in row.known or ({},):
            named = {**own, **known}
            if all(label in named for label in told):
                self._begin(row, named)

    def _told(self, row: Metric) -> list[str]:
        return [label for label in self._labels_of(row) if label not in AUTOMATIC]

    def _begin(self, row: Metric, known: Mapping[str, Iterable[str]]) -> None:
        """Begins every series of a row that has these values."""
        told = self._told(row)
        for values in itertools.product(*(known[label] for label in told)):
            self._child(row.name, row.kind, dict(zip(told, values, strict=True)))

    def _child(self, name: str, kind: Kind, labels: Mapping[str, str]) -> _Collector | None:
        """The series to record in; None for an alias that is switched off."""
        key = (name, kind, *labels, *labels.values())
        child = self._children.get(key)
        if child is not None:
            return child
        row = self._row(name)
        if row.kind != kind:
            raise ValueError(f"metric {name} is a {row.kind}, not a {kind}")
        if row.is_alias and not self._with_aliases:
            return None
        names = self._labels_of(row)
        given = {label: self._automatic[label] for label in names if label in AUTOMATIC}
        given.update(labels)
        if set(given) != set(names):
            wanted = [label for label in names if label not in AUTOMATIC]
            raise ValueError(f"metric {name} has the labels {wanted}, not {sorted(labels)}")
        with self._lock:
            if name not in self._collectors:
                self._register(row)
            bound = {label: self._bound(name, label, given[label]) for label in names}
            collector = self._collectors[name]
            child = collector.labels(**bound) if names else collector
            if list(bound.values()) == [given[label] for label in names]:
                self._children[key] = child
        return child

    def _bound(self, name: str, label: str, value: str) -> str:
        if label in AUTOMATIC:
            return value
        seen = self._seen.setdefault((name, label), set())
        if value in seen:
            return value
        if len(seen) >= MAX_LABEL_VALUES:
            return OVERFLOW_VALUE
        seen.add(value)
        return value
