"""The default policy: prefill by length class, decode by requests and KV length."""

from __future__ import annotations

from balancer.routing.class_memory import ClassMemory
from balancer.routing.composition import Composed
from balancer.routing.decode import TwoAxes
from balancer.routing.options import RoutingOptions
from balancer.routing.prefill import ByClass


def deepseek(options: RoutingOptions) -> Composed:
    """The policy with these options."""
    return Composed(
        name="deepseek",
        version=2,
        why="least outstanding work of the length class",
        prefill=ByClass(),
        decode=TwoAxes(),
        options=options,
        make_memory=lambda: ClassMemory(options),
    )
