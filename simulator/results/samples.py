"""What is noted while a run goes on: one row a request, spells of steps, a look every so often."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

NAN = float("nan")


@dataclass(slots=True)
class RequestRow:
    """One request; instants in seconds of the run, NaN for what did not come.

    Args:
        cached_tokens: Prompt tokens that were not computed.
        refused: Why it was refused; empty for a request that was served.
    """

    arrived_at: float
    prompt_tokens: int
    output_tokens: int
    length_class: int
    cached_tokens: int = 0
    placed_at: float = NAN
    began_at: float = NAN
    first_at: float = NAN
    second_at: float = NAN
    finished_at: float = NAN
    refused: str = ""

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.first_at - self.arrived_at

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first; NaN with one token."""
        if self.output_tokens < 2:
            return NAN
        return (self.finished_at - self.first_at) / (self.output_tokens - 1)


@dataclass(slots=True, kw_only=True)
class Look:
    """The cluster at one moment.

    Args:
        waiting: Requests without a first token, by length class.
        engines: Prefill engines by length class; empty for policies without classes.
        imbalance: max/mean over decode ranks of requests and of KV tokens; NaN when all are idle.
    """

    at: float
    waiting: tuple[int, ...]
    engines: tuple[int, ...]
    imbalance: tuple[float, float]


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Bytes through the store and what they bought."""

    prefix_bytes: float = 0.0
    handoff_bytes: float = 0.0
    written_bytes: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    evicted_blocks: int = 0


@dataclass(slots=True, kw_only=True)
class Samples:
    """Everything noted in a run.

    Args:
        gaps: (seconds, tokens): gaps between tokens of decode steps.
        prefill_busy, decode_busy: Share of the ranks' time with work of their own.
        prefill_fill: Computed work over capacity, as if all ranks were always evenly busy.
    """

    rows: list[RequestRow] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)
    ended_at: float = 0.0
    prefill_busy: float = 0.0
    prefill_fill: float = 0.0
    decode_busy: float = 0.0
    store_busy: float = 0.0
    decisions: int = 0
    held: int = 0


def quantiles(values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> dict[str, float]:
    """Mean, p50, p90 and p99; NaNs are left out, and nothing at all gives NaN.

    Args:
        values: `[n]`.
        weights: `[n]`, how often each value occurred; None for once.
    """
    data = np.asarray(values, dtype=np.float64)
    counts = np.ones_like(data) if weights is None else np.asarray(weights, dtype=np.float64)
    kept = ~np.isnan(data) & (counts > 0)
    data, counts = data[kept], counts[kept]
    if not len(data):
        return dict.fromkeys(("mean", "p50", "p90", "p99"), NAN)
    order = np.argsort(data, kind="stable")
    data, counts = data[order], counts[order]
    # The smallest value that at least this share of the observations does not exceed.
    reached = np.cumsum(counts) / counts.sum()
    found = {"mean": float((data * counts).sum() / counts.sum())}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        found[name] = float(data[min(int(np.searchsorted(reached, share - 1e-12)), len(data) - 1)])
    return found
