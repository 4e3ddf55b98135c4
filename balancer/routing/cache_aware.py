"""The comparison policies of the Mooncake paper, for members that cache prefixes of their own.

    load_balance        shortest queue; caches are not looked at
    local_cache_aware   queue + prefill with the member's own prefix
    global_cache_aware  queue + prefill with the best prefix anywhere, transfer included
    mooncake            as before, and refuses what would miss its latency targets

What a member caches is part of the request (`local_cached`); the store's prefix, if any, is within
everybody's reach. Source: Mooncake, FAST'25, Algorithm 1.
"""

from __future__ import annotations

import numpy as np

from balancer.membership.members import ExclusionCause
from balancer.membership.snapshot import Codes, Columns, Floats, Ints
from balancer.routing.composition import Case, Composed, Rule, Terms
from balancer.routing.decode import TwoAxes
from balancer.routing.estimates import Estimates
from balancer.routing.options import RoutingOptions
from balancer.routing.screening import exclude

CACHE_AWARE_NAMES = ("load_balance", "local_cache_aware", "global_cache_aware", "mooncake")


class ShortestQueue:
    """`load_balance`."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Nobody."""

    def terms(self, _case: Case, columns: Columns, rows: Ints) -> Terms:
        """Outstanding seconds, then requests."""
        return [("wait_s", columns.quota_s[rows]), ("requests", columns.requests[rows])]


class LocalCache:
    """`local_cache_aware`."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Nobody."""

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """Predicted seconds to the first token."""
        prefill_s = case.prefill_s(case.cached_tokens(columns, rows))
        return [("ttft_s", columns.quota_s[rows] + prefill_s)]


class GlobalCache:
    """`global_cache_aware`; with `refuses`, `mooncake`."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Members whose first token would come too late, if this one refuses; what was taken on
        once is seen through.
        """
        if self._refuses and case.request.attempt == 1:
            target_s = case.options.ttft_target_s(case.request.num_tokens, case.request.ttft_slo_s)
            rows = np.arange(len(columns))
            ttft_s = columns.quota_s + price_with_transfer(case, columns, rows)
            exclude(cause, ttft_s > target_s, ExclusionCause.TOO_SLOW)

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """Predicted seconds to the first token."""
        return [("ttft_s", columns.quota_s[rows] + price_with_transfer(case, columns, rows))]


class SteadyDecode(TwoAxes):
    """Two axes, without members whose steps would become too long."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Full members, and those whose predicted step misses the output target."""
        super().exclude(case, columns, cause)
        options, request = case.options, case.request
        step_s = (
            options.step_s
            + options.step_s_per_request * (columns.requests + 1)
            + options.step_s_per_token * (columns.tokens + request.num_tokens)
        )
        promised_s = request.tpot_slo_s
        target_s = options.tpot_slo_s if promised_s is None else promised_s
        exclude(cause, step_s > target_s, ExclusionCause.TOO_SLOW)


def price_with_transfer(case: Case, columns: Columns, rows: Ints) -> Floats:
    """Seconds of prefill: with one's own prefix, or with the best one after bringing it over."""
    own = case.cached_tokens(columns, rows)
    best = max([case.request.cached_tokens, *case.request.local_cached.values()])
    best = min(best, case.request.num_tokens - 1)
    transfer_s = np.maximum(0, best - own) * case.options.transfer_s_per_token
    brought_s = case.prefill_s(np.array([best])) + transfer_s
    return np.minimum(case.prefill_s(own), brought_s)


def cache_aware(name: str, options: RoutingOptions) -> Composed:
    """The policy of that name, one of `CACHE_AWARE_NAMES`."""
    rules: dict[str, tuple[str, Rule]] = {
        "load_balance": ("shortest queue", ShortestQueue()),
        "local_cache_aware": ("earliest first token with its own cache", LocalCache()),
        "global_cache_aware": ("earliest first token", GlobalCache(refuses=False)),
        "mooncake": ("earliest first token within the targets", GlobalCache(refuses=True)),
    }
    why, rule = rules[name]
    return Composed(
        name=name,
        version=2 if name == "mooncake" else 1,
        why=why,
        prefill=rule,
        decode=SteadyDecode() if name == "mooncake" else TwoAxes(),
        options=options,
        make_memory=lambda: Estimates(options),
        price=price_with_transfer if isinstance(rule, GlobalCache) else None,
    )
