"""Prefill work by length class, as metrics show it.

A tier is a length class under its public name. `quota` is what was handed out in the last full
round, `backlog` what waits for its prefill or is in it; both in prompt tokens to compute.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from balancer.membership.snapshot import Columns
from balancer.routing.shares import Shares
from runtime.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLoad:
    """Work of one tier: handed out in the last full round, and not over yet."""

    name: str
    quota_tokens: int
    backlog_tokens: int


class Tiers:
    """Counts prefill work by tier; belongs to one event loop.

    Args:
        boundaries: Prompt lengths at which a new length class begins, ascending.
        round_s: Length of a round.
    """

    def __init__(self, boundaries: Sequence[int], round_s: float) -> None:
        self.names = tier_names(boundaries)
        self._boundaries = tuple(boundaries)
        self._round_s = round_s
        self._open: dict[str, tuple[int, int]] = {}
        self._this_round = [0] * len(self.names)
        self._last_round = [0] * len(self.names)
        self._round_began: float | None = None

    def class_of(self, num_tokens: int) -> int:
        """Number of the tier of a prompt."""
        return bisect_right(self._boundaries, num_tokens)

    def begin(self, work_id: str, tier: int, tokens: int, now: float) -> None:
        """A prefill was handed out."""
        self._turn(now)
        self._open[work_id] = (tier, tokens)
        self._this_round[tier] += tokens

    def end(self, work_id: str) -> None:
        """It is over. Idempotent; unknown names change nothing."""
        self._open.pop(work_id, None)

    def loads(self, now: float) -> tuple[TierLoad, ...]:
        """The work of every tier, shortest prompts first."""
        self._turn(now)
        backlog = [0] * len(self.names)
        for tier, tokens in self._open.values():
            backlog[tier] += tokens
        return tuple(
            TierLoad(name=name, quota_tokens=quota, backlog_tokens=left)
            for name, quota, left in zip(self.names, self._last_round, backlog, strict=True)
        )

    def publish(self, metrics: Metrics, own: object, decode: Columns, now: float) -> None:
        """Sets the gauges.

        Args:
            own: What the policy keeps for itself; engines are counted if these are shares.
            decode: The decode members.
        """
        engines = own.counts(len(self.names)) if isinstance(own, Shares) else None
        for index, load in enumerate(self.loads(now)):
            metrics.set("disagg_tier_quota_tokens", load.quota_tokens, tier=load.name)
            metrics.set("disagg_tier_backlog_tokens", load.backlog_tokens, tier=load.name)
            if engines is not None:
                metrics.set("disagg_tier_engines", engines[index], tier=load.name)
        for axis, ratio in imbalance(decode).items():
            metrics.set("disagg_decode_imbalance_ratio", ratio, axis=axis)

    def _turn(self, now: float) -> None:
        if self._round_began is None:
            self._round_began = now
        elapsed = int((now - self._round_began) / self._round_s)
        if elapsed > 0:
            empty = [0] * len(self.names)
            self._last_round = self._this_round if elapsed == 1 else empty
            self._this_round = [0] * len(self.names)
            self._round_began += elapsed * self._round_s


def tier_names(boundaries: Sequence[int]) -> tuple[str, ...]:
    """Names of the classes between these prompt lengths, e.g. `lt16k`, `16k_64k`, `ge64k`."""
    if not boundaries:
        return ("all",)
    texts = [f"{n // 1024}k" if n % 1024 == 0 else str(n) for n in boundaries]
    between = [f"{low}_{high}" for low, high in pairwise(texts)]
    return (f"lt{texts[0]}", *between, f"ge{texts[-1]}")


def imbalance(decode: Columns) -> Mapping[str, float]:
    """Largest over mean load of the ranks that take work, by axis; 1 when there is none."""
    rows = decode.cause == 0
    ratios = {}
    for axis, column in (("requests", decode.requests), ("kv_tokens", decode.tokens)):
        values = column[rows]
        total = float(values.sum())
        ratios[axis] = float(values.max()) * len(values) / total if total > 0 else 1.0
    return ratios
