"""The placement policies, selected by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from balancer.routing.base import Policy
from balancer.routing.buckets import sgl_bucket
from balancer.routing.cache_aware import CACHE_AWARE_NAMES, cache_aware
from balancer.routing.composition import Case, Composed, Terms
from balancer.routing.decode import TwoAxes
from balancer.routing.deepseek import deepseek
from balancer.routing.dynamo import dynamo_kv
from balancer.routing.estimates import Estimates
from balancer.routing.llmd import llmd_weighted
from balancer.routing.ondemand import ondemand
from balancer.routing.options import RoutingOptions
from balancer.routing.simple import SIMPLE_NAMES, simple
from balancer.snapshot import Codes, Columns, Ints


class _LeastTokensThenRequests:
    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Nobody."""

    def terms(self, _case: Case, columns: Columns, rows: Ints) -> Terms:
        """Tokens, then requests."""
        return [("tokens", columns.tokens[rows]), ("requests", columns.requests[rows])]


def _least_outstanding(options: RoutingOptions) -> Composed:
    return Composed(
        name="least_outstanding",
        version=2,
        why="least outstanding work",
        prefill=_LeastTokensThenRequests(),
        decode=TwoAxes(),
        options=options,
        make_memory=lambda: Estimates(options),
    )


POLICIES: dict[str, Callable[[RoutingOptions], Policy]] = {
    "deepseek": deepseek,
    "least_outstanding": _least_outstanding,
    **{name: partial(simple, name) for name in SIMPLE_NAMES},
    **{name: partial(cache_aware, name) for name in CACHE_AWARE_NAMES},
    "dynamo_kv": dynamo_kv,
    "llmd_weighted": llmd_weighted,
    "sgl_bucket": sgl_bucket,
    "ondemand": ondemand,
}


def make_policy(name: str, options: RoutingOptions | None = None) -> Policy:
    """Returns the policy of that name.

    Raises:
        ValueError: No such policy; the message lists those there are.
    """
    if name not in POLICIES:
        raise ValueError(f"no placement policy {name!r}; there are: {', '.join(sorted(POLICIES))}")
    return POLICIES[name](options or RoutingOptions())
