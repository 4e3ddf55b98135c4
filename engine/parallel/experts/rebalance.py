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


def plan(loads: npt.ArrayLike, slots: ExpertSlots) -> Placement:
    """Places one layer.

    Args:
        loads: [steps, E] tokens per logical expert and step.
        slots: how many slots on how many ranks.

    Raises:
        ValueError: `loads` has another number of experts.
    """
    window = np.asarray(loads, dtype=np.float64)
    if window.ndim != 2 or window.shape[1] != slots.num_logical:
        raise ValueError(
            f"loads are {list(window.shape)}, wanted [steps, {slots.num_logical}]: one column per "
            f"logical expert"
        )
    counts = replica_counts(window, slots)
    owners = np.repeat(np.arange(slots.num_logical), counts)
    each = window / counts
    held = _pack(each, owners, slots)
    _separate(each, held)
    return Placement(held.reshape(-1), num_logical=slots.num_logical, ep=slots.ep)


def replica_counts(window: LoadArray, slots: ExpertSlots) -> IntArray:
    """Replicas of each expert: spare slots go where the summed peak load per replica falls most.

    No expert gets more replicas than there are ranks while another one can take the slot.
    """
    loads = window + _TIE_BREAK * np.arange(slots.num_logical)
    counts = np.ones(slots.num_logical, dtype=np.int64)
    steps = np.arange(len(loads))
    for _ in range(slots.num_extra):
        each = loads / counts
        highest = each.argmax(1)
        peak = each[steps, highest]
        others = each.copy()
        others[steps, highest] = -np.inf
        # Peak of each step if expert e had one replica more: that of the others, or e's own.
        without = np.broadcast_to(peak[:, None], each.shape).copy()
        without[steps, highest] = others.max(1, initial=0.0)
        summed = np.maximum(without, loads / (counts + 1)).sum(0)
        if (counts < slots.ep).any():
            summed[counts >= slots.ep] = np.inf
        counts[int(summed.argmin())] += 1
    return counts


def _pack(each: LoadArray, owners: IntArray, slots: ExpertSlots) -> IntArray:
    """Experts of each rank, [ep, slots_per_rank]: heaviest slot first, lowest summed peak."""
    total = each.sum(0)
    order = np.argsort(-total[owners], kind="stable")
    held = np.full((slots.ep, slots.slots_per_rank), -1, dtype=np.int64)
    filled = np.zeros(slots.ep, dtype=np.int64)
    load = np.zeros((len(each), slots.ep))
    for expert in owners[order]:
        column = each[:, expert]
        peak = load.max(1)
        summed = np.maximum(peak[:, None], load + column[:, None]).sum(0)
        summed[filled == slots.slots_per_rank] = np.inf
        rank = int(summed.argmin())
        held[rank, filled[rank]] = expert
        filled[rank] += 1
        load[:, rank] += column
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
