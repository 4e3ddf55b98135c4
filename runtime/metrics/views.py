"""Series of one metric shown under another name, made anew with each exposition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from runtime.metrics.rows import Alias

Source = Counter | Gauge | Histogram

NOT = "!"
"""In front of a value in `Alias.where`: every other value."""


class AliasView(Collector):
    """Offers aliases to a registry.

    Args:
        aliases: What is offered.
        source: Finds the metric of a name; None if this process has none.
        labels: Labels of every series, such as the name of the model.
    """

    def __init__(
        self,
        aliases: Iterable[Alias],
        source: Callable[[str], Source | None],
        labels: Callable[[], Mapping[str, str]],
    ) -> None:
        self._aliases = tuple(aliases)
        self._source = source
        self._labels = labels

    def collect(self) -> Iterator[Family]:
        """See prometheus_client."""
        labels = self._labels()
        for alias in self._aliases:
            source = self._source(alias.source)
            if source is not None:
                for family in source.collect():
                    yield view_of(alias, family, labels)


def view_of(alias: Alias, family: Family, labels: Mapping[str, str]) -> Family:
    """The family of an alias: series that count, under its name, summed where labels are gone.

    A counter of a histogram counts its observations.
    """
    counts = alias.name.endswith("_total") and family.type == "histogram"
    base = alias.name.removesuffix("_total")
    kind = "counter" if counts else family.type
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[float, Exemplar | None]] = {}
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        if suffix == "_created" or not _counted(alias, sample):
            continue
        if counts and suffix != "_count":
            continue
        kept = {**labels, **{name: sample.labels[key] for name, key in alias.keep.items()}}
        if "le" in sample.labels:
            kept["le"] = sample.labels["le"]
        key = ("_total" if counts else suffix, tuple(kept.items()))
        value, exemplar = sums.get(key, (0.0, None))
        sums[key] = (value + sample.value, sample.exemplar or exemplar)
    made = Family(base, alias.help, kind)
    made.samples = [
        Sample(base + suffix, dict(kept), value, None, exemplar)
        for (suffix, kept), (value, exemplar) in sums.items()
    ]
    return made


def _counted(alias: Alias, sample: Sample) -> bool:
    for label, wanted in alias.where.items():
        is_equal = sample.labels.get(label) == wanted.removeprefix(NOT)
        if is_equal == wanted.startswith(NOT):
            return False
    return True
