"""The placement policies, selected by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from balancer.routing.base import Policy
from balancer.routing.buckets import sgl_bucket
from balancer.routing.cache_aware import CACHE_AWARE_NAMES, cache_aware
from balancer.routing.deepseek import deepseek
from balancer.routing.dynamo import dynamo_kv
from balancer.routing.llmd import llmd_weighted
from balancer.routing.ondemand import ondemand
from balancer.routing.options import RoutingOptions
from balancer.routing.simple import SIMPLE_NAMES, simple

POLICIES: dict[str, Callable[[RoutingOptions], Policy]] = {
    "deepseek": deepseek,
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
