"""What a row of the metric table says, and the buckets and words that rows share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

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
TOKEN_BUCKETS = (*(float(m * 10**k) for k in range(6) for m in (1, 2, 5)), 1e6)

Kind = Literal["counter", "gauge", "histogram"]

BALANCER, PREFILL, DECODE, STORE = "balancer", "prefill", "decode", "store"
MEMBERS: Final = (PREFILL, DECODE)
SERVING: Final = (BALANCER, PREFILL, DECODE)

Known = Mapping[str, tuple[str, ...]]

AUTOMATIC: Final = (
    "model_name",
    "gen_ai_request_model",
    "gen_ai_provider_name",
    "dp_rank",
    "engine",
)
"""Labels that a process has one value for; filled in unless they are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table.

    Attributes:
        roles: Processes that export it from the start; any other one does once it records.
        known: Values of labels. Each mapping stands for every combination of its values, and those
            that name all labels are exported as zero from the start; labels that only a process
            knows the values of are left out, and it gives them to `Metrics.expect`.
        has_exemplars: Observations name the trace they were made in.
        per_rank: Has the label `dp_rank` where `metrics.per_rank` asks for it.
        is_alias: A name of vLLM; exported where `metrics.vllm_aliases` is on.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    roles: tuple[str, ...] = ()
    known: tuple[Known, ...] = ()
    has_exemplars: bool = False
    per_rank: bool = False
    is_alias: bool = False

    def values_of(self, label: str) -> tuple[str, ...]:
        """Values of a label that are known beforehand, each once."""
        return tuple(dict.fromkeys(value for known in self.known for value in known.get(label, ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A name of vLLM for series of a row of ours.

    Attributes:
        source: The row.
        where: Label values of the series that count; others are left out.
        keep: Labels of the alias, and those of the row they come from; others are summed over.
    """

    name: str
    source: str
    help: str
    roles: tuple[str, ...]
    where: Mapping[str, str] = field(default_factory=dict)
    keep: Mapping[str, str] = field(default_factory=dict)


def _products(known: Known | tuple[Known, ...]) -> tuple[Known, ...]:
    return known if isinstance(known, tuple) else (known,)


def counter(
    name: str,
    text: str,
    *labels: str,
    roles: tuple[str, ...],
    known: Known | tuple[Known, ...] = (),
) -> Metric:
    """A row of a counter."""
    return Metric(
        name=name, kind="counter", help=text, labels=labels, roles=roles, known=_products(known)
    )


def gauge(
    name: str,
    text: str,
    *labels: str,
    roles: tuple[str, ...],
    known: Known | tuple[Known, ...] = (),
) -> Metric:
    """A row of a gauge."""
    return Metric(
        name=name, kind="gauge", help=text, labels=labels, roles=roles, known=_products(known)
    )


def histogram(
    name: str,
    text: str,
    buckets: tuple[float, ...],
    *labels: str,
    roles: tuple[str, ...],
    known: Known | tuple[Known, ...] = (),
    has_exemplars: bool = False,
) -> Metric:
    """A row of a histogram."""
    return Metric(
        name=name,
        kind="histogram",
        help=text,
        labels=labels,
        buckets=buckets,
        roles=roles,
        known=_products(known),
        has_exemplars=has_exemplars,
    )
