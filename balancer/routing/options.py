"""What placement can be told. Plain data; the process edge fills it from its settings."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from balancer.routing.quota import FlopCount

_K = 1024
REFUSE_LATE = ("stated", "always", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingOptions:
    """Options of all policies; each policy reads those that concern it.

    Attributes:
        boundaries: Prompt lengths at which a new length class begins, ascending.
        flops: The cost of a prefill before any has been measured.
        forgetting: Weight of a measured prefill once the next one came.
        first_output_tokens: Expected output before an answer of its class has ended.
        round_s: Length of a round of engine shares.
        max_moves: Engines that may change their class in a round.
        min_gain: Share by which the worst backlog per engine must fall for a move.
        starvation_s: Longest wait for an engine of one's own class; see `balancer.routing.prefill`.
        give_way_s: How long a request that misses its first-token target lets others go first.
        refuse_late: When it is refused instead: `stated`: if the caller stated a target; `always`;
            or `never`.
        reserve_share: Share of a decode member's KV capacity that stays free at admission.
        look_ahead: Requests that may be prefilled for a decode member beyond its slots.
        replicas: Balancers that share these members; above 1 their views are stale, so each
            draws two of the best candidates instead of taking the best one.
        salt: Name of this balancer; makes the draws of replicas differ.
        ttft_slo_s, ttft_slo_per_token_s: First-token target: constant, and part per prompt token.
        tpot_slo_s: Target per output token.
        transfer_s_per_token: Seconds to bring one token's KV from another machine.
        step_s, step_s_per_request, step_s_per_token: `mooncake`: a decode step by running requests
            and KV tokens; 0 leaves the output target unchecked.
        busy_at: `ondemand`: outstanding requests at which a prefill member refuses.
        prefill_scale, temperature: `dynamo_kv`: weight of prefill tokens, softness (0: argmin).
        weights: `llmd_weighted`: weight per scorer.
        bucket_drift: `sgl_bucket`: ratio of loads at which boundaries are cut anew.
    """

    boundaries: tuple[int, ...] = (16 * _K, 64 * _K, 256 * _K)
    flops: FlopCount = field(default_factory=FlopCount)
    forgetting: float = 0.98
    first_output_tokens: float = 256.0
    round_s: float = 5.0
    max_moves: int = 2
    min_gain: float = 0.1
    starvation_s: float = 1.0
    give_way_s: float = 0.0
    refuse_late: str = "stated"
    reserve_share: float = 0.0
    look_ahead: int = 0
    replicas: int = 1
    salt: str = ""
    ttft_slo_s: float = 2.0
    ttft_slo_per_token_s: float = 1.0 / (16 * _K)
    tpot_slo_s: float = 0.05
    transfer_s_per_token: float = 0.0
    step_s: float = 0.0
    step_s_per_request: float = 0.0
    step_s_per_token: float = 0.0
    busy_at: int = 1
    prefill_scale: float = 1.0
    temperature: float = 0.0
    weights: Mapping[str, float] = field(
        default_factory=lambda: {
            "queue": 2.0,
            "kv_utilisation": 2.0,
            "token_load": 1.0,
            "prefix": 3.0,
            "running": 1.0,
        }
    )
    bucket_drift: float = 2.0

    def __post_init__(self) -> None:
        """Refuses what cannot be.

        Raises:
            ValueError: Names the option, its value and what it must be.
        """
        if (
            list(self.boundaries) != sorted(set(self.boundaries))
            or min(self.boundaries, default=1) < 1
        ):
            raise ValueError(f"boundaries {self.boundaries} must be positive and ascending")
        for name in ("round_s", "first_output_tokens", "ttft_slo_s", "tpot_slo_s", "bucket_drift"):
            _check(name, getattr(self, name), positive=True)
        for name in (
            "min_gain",
            "starvation_s",
            "give_way_s",
            "transfer_s_per_token",
            "ttft_slo_per_token_s",
        ):
            _check(name, getattr(self, name), positive=False)
        for name in ("prefill_scale", "temperature"):
            _check(name, getattr(self, name), positive=False)
        for name in ("step_s", "step_s_per_request", "step_s_per_token"):
            _check(name, getattr(self, name), positive=False)
        for name, weight in self.weights.items():
            _check(f"weights[{name!r}]", weight, positive=False)
        if self.refuse_late not in REFUSE_LATE:
            raise ValueError(
                f"refuse_late {self.refuse_late!r} must be one of {', '.join(REFUSE_LATE)}"
            )
        if not 0 <= self.reserve_share < 1:
            raise ValueError(f"reserve_share {self.reserve_share} must be in [0, 1)")
        for name, least in (
            ("max_moves", 1),
            ("look_ahead", 0),
            ("replicas", 1),
            ("busy_at", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} {getattr(self, name)} must be at least {least}")

    @property
    def num_classes(self) -> int:
        """Length classes."""
        return len(self.boundaries) + 1

    def class_of(self, num_tokens: int) -> int:
        """Length class of a prompt; a prompt as long as a boundary is in the upper class."""
        return bisect_right(self.boundaries, num_tokens)

    def refuses_late(self, attempt: int, promised_s: float | None) -> bool:
        """Whether such a request is refused when it would miss its target."""
        # What was taken on is seen through: a repeated attempt may have tokens out already.
        is_new = attempt == 1
        is_stated = self.refuse_late == "stated" and promised_s is not None
        return is_new and (is_stated or self.refuse_late == "always")

    def ttft_target_s(self, num_tokens: int, promised_s: float | None) -> float:
        """Seconds to the first token that count as good."""
        if promised_s is not None:
            return promised_s
        return self.ttft_slo_s + self.ttft_slo_per_token_s * num_tokens


def class_limits(boundaries: Sequence[int]) -> tuple[str, ...]:
    """The classes between these prompt lengths for people, e.g. `<16K`, `16K-64K`, `>=64K`."""
    if not boundaries:
        return ("all",)
    texts = [f"{n // 1024}K" if n % 1024 == 0 else f"{n}" for n in boundaries]
    between = [f"{low}-{high}" for low, high in pairwise(texts)]
    return (f"<{texts[0]}", *between, f">={texts[-1]}")


def _check(name: str, value: float, *, positive: bool) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name} {value} must be {'positive' if positive else 'at least 0'}")
