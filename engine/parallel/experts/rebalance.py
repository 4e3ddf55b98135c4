"""Where the replicas of a layer go, given the loads of recent steps.

A step waits for its most loaded rank, so the objective is the sum over steps of that load, not an
average over steps. Three stages: replicate, pack, and swap away replicas that share a rank with
one of their own, which would be useless.

Deterministic: every rank computes the same plan from the same loads.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from engine.parallel.experts.placement import Placement
from engine.parallel.layout.slots import ExpertSlots

IntArray = npt.NDArray[np.int64]
LoadArray = npt.NDArray[np.float64]

# Makes equal loads distinct, so that relieving one of two equal peaks counts as progress.
_TIE_BREAK: Final = 1e-4


def plan(
    loads: npt.ArrayLike, slots: ExpertSlots, *, num_nodes: int = 1, num_groups: int = 1
) -> Placement:
    """Places one layer.

    With several nodes, and expert groups that divide among them, groups stay whole on a node:
    first groups go to nodes, then each node places its own experts on its own ranks.

    Args:
        loads: [steps, E] tokens per logical expert and step.
        slots: how many slots on how many ranks.
        num_nodes: nodes of equally many ranks.
        num_groups: groups of consecutive experts that are chosen together.

    Raises:
        ValueError: `loads` has another number of experts, or nodes and groups do not divide.
    """
    window = np.asarray(loads, dtype=np.float64)
    if window.ndim != 2 or window.shape[1] != slots.num_logical:
        raise ValueError(
            f"loads are {list(window.shape)}, wanted [steps, {slots.num_logical}]: one column per "
            f"logical expert"
        )
    if slots.ep % num_nodes or slots.num_logical % num_groups:
        raise ValueError(
            f"{num_nodes} nodes must divide ep {slots.ep}, and {num_groups} groups the "
            f"{slots.num_logical} experts"
        )
    if num_groups % num_nodes:
        num_nodes = num_groups = 1
    held = []
    for experts in _node_experts(window, num_nodes, num_groups):
        local = _place(window[:, experts], slots.ep // num_nodes, slots.slots_per_rank)
        held.append(experts[local].reshape(-1))
    return Placement(np.concatenate(held), num_logical=slots.num_logical, ep=slots.ep)


def _node_experts(window: LoadArray, num_nodes: int, num_groups: int) -> list[IntArray]:
    """Experts of each node, in ascending order."""
    groups = np.arange(window.shape[1]).reshape(num_groups, -1)
    by_group = window[:, groups].sum(-1)
    chosen = _pack(by_group, np.arange(num_groups), num_nodes, num_groups // num_nodes)
    return [np.sort(groups[node].reshape(-1)) for node in chosen]


def _place(window: LoadArray, num_ranks: int, slots_per_rank: int) -> IntArray:
    """Experts of each rank, [num_ranks, slots_per_rank]."""
    counts = replica_counts(window, num_ranks, num_ranks * slots_per_rank)
    owners = np.repeat(np.arange(window.shape[1]), counts)
    each = window / counts
    held = _pack(each, owners, num_ranks, slots_per_rank)
    _separate(each, held)
    return held


def replica_counts(window: LoadArray, num_ranks: int, num_slots: int) -> IntArray:
    """Replicas of each expert: spare slots go where the summed peak load per replica falls most.

    No expert gets more replicas than there are ranks while another one can take the slot.
    """
    num_experts = window.shape[1]
    loads = window + _TIE_BREAK * np.arange(num_experts)
    counts = np.ones(num_experts, dtype=np.int64)
    steps = np.arange(len(loads))
    for _ in range(num_slots - num_experts):
        each = loads / counts
        highest = each.argmax(1)
        peak = each[steps, highest]
        others = each.copy()
        others[steps, highest] = -np.inf
        # Peak of each step if expert e had one replica more: that of the others, or e's own.
        without = np.broadcast_to(peak[:, None], each.shape).copy()
        without[steps, highest] = others.max(1, initial=0.0)
        summed = np.maximum(without, loads / (counts + 1)).sum(0)
        if (counts < num_ranks).any():
            summed[counts >= num_ranks] = np.inf
        counts[int(summed.argmin())] += 1
    return counts


def _pack(each: LoadArray, owners: IntArray, num_packs: int, room: int) -> IntArray:
    """Items of each pack, [num_packs, room]: heaviest first, where the summed peak stays lowest.

    Args:
        each: [steps, items] load of one copy of an item.
        owners: [num_packs * room] items to pack; an item may stand there several times.
        num_packs, room: shape of the result.
    """
    total = each.sum(0)
    order = np.argsort(-total[owners], kind="stable")
    held = np.full((num_packs, room), -1, dtype=np.int64)
    filled = np.zeros(num_packs, dtype=np.int64)
    load = np.zeros((len(each), num_packs))
    for item in owners[order]:
        column = each[:, item]
        peak = load.max(1)
        summed = np.maximum(peak[:, None], load + column[:, None]).sum(0)
        summed[filled == room] = np.inf
        pack = int(summed.argmin())
        held[pack, filled[pack]] = item
        filled[pack] += 1
        load[:, pack] += column
    return held


def _separate(each: LoadArray, held: IntArray) -> None:
    """Swaps slots in place until no replica shares a rank with one of its own, where avoidable.

    There is always a swap that helps: a rank without the doubled expert holds either an expert
    that the crowded rank lacks, or a doubled one of its own.
    """
    ranks, experts = len(held), each.shape[1]
    present = np.zeros((ranks, experts), dtype=np.int64)
    np.add.at(present, (np.arange(ranks)[:, None], held), 1)
    most = -(-present.sum(0) // ranks)
    load = each[:, held].sum(-1)
    while True:
        crowded = np.argwhere(present > most)
        if not len(crowded):
            return
        rank, expert = (int(value) for value in crowded[0])
        swap = _best_swap(each, held, present, most, load, rank, expert)
        if swap is None:
            return
        other, place = swap
        back = int(held[other, place])
        mine = int(np.flatnonzero(held[rank] == expert)[-1])
        held[rank, mine], held[other, place] = back, expert
        for moved, source, target in ((expert, rank, other), (back, other, rank)):
            present[source, moved] -= 1
            present[target, moved] += 1
            load[:, source] -= each[:, moved]
            load[:, target] += each[:, moved]


def _best_swap(
    each: LoadArray,
    held: IntArray,
    present: IntArray,
    most: IntArray,
    load: LoadArray,
    rank: int,
    expert: int,
) -> tuple[int, int] | None:
    """Other rank and its place: a slot of equal load first, else the lowest summed peak."""
    best: tuple[bool, float, int, int] | None = None
    for other, row in enumerate(held):
        if present[other, expert] >= most[expert]:
            continue
        for place, back in enumerate(row.tolist()):
            is_double_there = present[other, back] > most[back]
            if present[rank, back] >= most[back] and not is_double_there:
                continue
            difference = each[:, back] - each[:, expert]
            moved = load.copy()
            moved[:, rank] += difference
            moved[:, other] -= difference
            key = (bool(difference.any()), float(moved.max(1).sum()), other, place)
            best = key if best is None else min(best, key)
    return None if best is None else best[2:]
