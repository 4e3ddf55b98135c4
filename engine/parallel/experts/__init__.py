"""Experts on ranks: maps, replicas, load statistics, rebalancing and its agreed swap."""

from engine.parallel.experts.eplb import Replication, rebalance_experts
from engine.parallel.experts.loads import LoadWindow, imbalance
from engine.parallel.experts.placement import Placement
from engine.parallel.experts.rebalance import plan
from engine.parallel.experts.swap import PlacementSwap, Transfer, transfers

__all__ = [
    "LoadWindow",
    "Placement",
    "PlacementSwap",
    "Replication",
    "Transfer",
    "imbalance",
    "plan",
    "rebalance_experts",
    "transfers",
]
