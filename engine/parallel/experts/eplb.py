"""The public placement algorithm: replicate by average load, pack greedily, two levels if possible.

Source: the published EPLB of DeepSeek, restated from its description; float32, stable order, ties
to the lower index. Kept as a baseline and for hosts with several nodes; the engine itself places
by `rebalance.plan`, which looks at single steps. All layers are handled at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
LoadArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """Maps of all layers.

    Args:
        physical_to_logical: [layers, P].
        logical_to_physical: [layers, E, most replicas], padded with -1, in order of replication.
        counts: [layers, E] replicas.
    """

    physical_to_logical: IntArray
    logical_to_physical: IntArray
    counts: IntArray


def rebalance_experts(
    loads: npt.ArrayLike, *, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> Replication:
    """Places the replicas of every layer.

    Args:
        loads: [layers, E] tokens per logical expert.
        num_replicas: slots P, a multiple of `num_gpus`.
        num_groups: expert groups; when a multiple of `num_nodes`, groups stay whole on a node.
        num_nodes: nodes, a divisor of `num_gpus`.
        num_gpus: ranks.

    Raises:
        ValueError: numbers that do not divide.
    """
    weight = np.asarray(loads, dtype=np.float32)
    layers, experts = weight.shape
    if num_groups % num_nodes:
        num_groups = num_nodes = 1
    for name, whole, part in (
        ("experts by groups", experts, num_groups),
        ("ranks by nodes", num_gpus, num_nodes),
        ("slots by ranks", num_replicas, num_gpus),
    ):
        if whole % part:
            raise ValueError(f"{name}: {part} does not divide {whole}")
    row = np.arange(layers)[:, None]
    # Logical experts in node order ("mid"): groups are packed to nodes as a whole.
    group_size = experts // num_groups
    node, place = pack(weight.reshape(layers, num_groups, group_size).sum(-1), num_nodes)
    first = (node * (num_groups // num_nodes) + place) * group_size
    log_to_mid = (first[:, :, None] + np.arange(group_size)).reshape(layers, experts)
    mid_to_log = log_to_mid.argsort(1)
    # Within each node: replicate, then pack the replicas to its ranks.
    by_node = weight[row, mid_to_log].reshape(layers * num_nodes, experts // num_nodes)
    mids, copy, counts = replicate(by_node, num_replicas // num_nodes)
    each = np.take_along_axis(by_node / counts.astype(np.float32), mids, 1)
    rank, place = pack(each, num_gpus // num_nodes)
    slot_of = (rank * (num_replicas // num_gpus) + place).argsort(1)
    offset = (np.arange(num_nodes) * (experts // num_nodes))[:, None]
    mids = np.take_along_axis(mids, slot_of, 1).reshape(layers, num_nodes, -1) + offset
    copies = np.take_along_axis(copy, slot_of, 1).reshape(layers, num_replicas)
    physical = mid_to_log[row, mids.reshape(layers, num_replicas)]
    counts = counts.reshape(layers, experts)[row, log_to_mid]
    inverse = np.full((layers, experts, int(counts.max())), -1, dtype=np.int64)
    inverse[row, physical, copies] = np.arange(num_replicas)
    return Replication(physical_to_logical=physical, logical_to_physical=inverse, counts=counts)


def pack(weight: LoadArray, num_packs: int) -> tuple[IntArray, IntArray]:
    """Puts n items into equally full packs: heaviest first, into the lightest pack with room.

    Args:
        weight: [layers, n].
        num_packs: a divisor of n.

    Returns:
        Pack, and place in the pack, of each item: [layers, n] both.
    """
    layers, items = weight.shape
    room = items // num_packs
    if room == 1:
        pack_of = np.broadcast_to(np.arange(items), (layers, items)).copy()
        return pack_of, np.zeros_like(pack_of)
    pack_of = np.empty((layers, items), dtype=np.int64)
    place = np.empty_like(pack_of)
    load = np.zeros((layers, num_packs), dtype=np.float32)
    filled = np.zeros((layers, num_packs), dtype=np.int64)
    every = np.arange(layers)
    for item in np.argsort(-weight, axis=1, kind="stable").T:
        lightest = np.where(filled < room, load, np.inf).argmin(1)
        pack_of[every, item] = lightest
        place[every, item] = filled[every, lightest]
        load[every, lightest] += weight[every, item]
        filled[every, lightest] += 1
    return pack_of, place


def replicate(weight: LoadArray, num_slots: int) -> tuple[IntArray, IntArray, IntArray]:
    """Gives each spare slot to the item with the largest load per replica.

    Args:
        weight: [layers, n].
        num_slots: at least n.

    Returns:
        Item of each slot and its copy number, [layers, num_slots]; replicas, [layers, n].
    """
    layers, items = weight.shape
    owner = np.empty((layers, num_slots), dtype=np.int64)
    owner[:, :items] = np.arange(items)
    copy = np.zeros_like(owner)
    counts = np.ones((layers, items), dtype=np.int64)
    every = np.arange(layers)
    for slot in range(items, num_slots):
        heaviest = (weight / counts.astype(np.float32)).argmax(1)
        owner[:, slot] = heaviest
        copy[:, slot] = counts[every, heaviest]
        counts[every, heaviest] += 1
    return owner, copy, counts
