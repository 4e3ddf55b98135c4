"""What went wrong since start, by cause, out of the counters of this process. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

MAX_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A counter that the page shows.

    Attributes:
        what: Its name on the page.
        where, cause: Labels that are shown; `where` may be empty.
        only: Values that labels must have.
    """

    what: str
    metric: str
    cause: str
    where: str = ""
    only: Mapping[str, str] | None = None


KINDS = (
    Kind(what="repeated", metric="disagg_redispatch_total", where="stage", cause="reason"),
    Kind(what="failed", metric="disagg_requests_total", cause="reason", only={"outcome": "failed"}),
    Kind(what="refused", metric="disagg_admission_rejections_total", cause="reason"),
    Kind(what="cancelled", metric="disagg_cancellations_total", where="stage", cause="origin"),
    Kind(what="prefix given up", metric="disagg_prefix_fallback_total", cause="cause"),
    Kind(what="read ahead given up", metric="disagg_prefetch_total", cause="outcome"),
)

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?")


def failures(values: Mapping[str, float]) -> list[Mapping[str, object]]:
    """The counters that are not zero, most frequent first within their kind.

    Args:
        values: As `Metrics.snapshot` tells them.
    """
    lines: list[Mapping[str, object]] = []
    for kind in KINDS:
        counts: Counter[tuple[str, str]] = Counter()
        for sample, value in values.items():
            if value and (labels := _labels(sample, kind)) is not None:
                counts[labels] += int(value)
        lines += [
            {"what": kind.what, "where": where, "cause": cause, "count": count}
            for (where, cause), count in sorted(
                counts.items(), key=lambda item: (-item[1], item[0])
            )
        ]
    return lines[:MAX_LINES]


def _labels(sample: str, kind: Kind) -> tuple[str, str] | None:
    """Where and why, if the sample is one of this kind."""
    found = _SAMPLE.fullmatch(sample)
    if found is None or found["name"] != kind.metric:
        return None
    pairs = (pair.partition("=") for pair in (found["labels"] or "").split(",") if pair)
    labels = {name: value for name, _, value in pairs}
    if any(labels.get(name) != value for name, value in (kind.only or {}).items()):
        return None
    return labels.get(kind.where, ""), labels.get(kind.cause, "")
