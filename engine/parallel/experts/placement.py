"""Which logical expert each physical slot of a layer holds, and which replica serves a row.

Pure: integers and arrays. Slot p lives on ep rank `p // slots_per_rank`.

Invariants:
- every logical expert has at least one slot; every rank has equally many slots;
- the replica of a row is a function of map, ep rank and row number alone, so that every backend
  routes alike. Results do not depend on it, since replicas hold equal weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.parallel.errors import LayoutError
from engine.parallel.layout.slots import ExpertSlots

IntArray = npt.NDArray[np.int64]

# Spreads the rows of a batch over the replicas; the factor of the public gate kernel.
ROW_STRIDE: Final = 23333


class Placement:
    """The map of one layer, both ways. Immutable; equal on all ranks of an expert group.

    Args:
        physical_to_logical: logical expert of each slot.
        num_logical: routed experts of the model.
        ep: ranks that share the slots.

    Raises:
        LayoutError: a slot or an expert is missing, or the slots do not divide by the ranks.
    """

    __slots__ = (
        "_is_identity",
        "counts",
        "ep",
        "logical_to_physical",
        "num_logical",
        "physical_to_logical",
    )

    def __init__(
        self, physical_to_logical: Sequence[int] | IntArray, *, num_logical: int, ep: int
    ) -> None:
        """Derives the inverse map and the replica counts."""
        slots = np.array(physical_to_logical, dtype=np.int64)
        if not len(slots) or len(slots) % ep:
            raise LayoutError([("V4", f"{len(slots)} slots cannot be spread evenly over ep {ep}")])
        if slots.min() < 0 or slots.max() >= num_logical:
            raise LayoutError(
                [
                    (
                        "MAP",
                        f"slots hold experts {slots.min()} to {slots.max()}, the model has 0 to "
                        f"{num_logical - 1}",
                    )
                ]
            )
        counts = np.bincount(slots, minlength=num_logical)
        if not counts.all():
            raise LayoutError([("MAP", f"expert {int(counts.argmin())} has no slot")])
        # Slots of each expert in ascending order, padded with -1.
        order = slots.argsort(kind="stable")
        firsts = np.cumsum(counts) - counts
        inverse = np.full((num_logical, int(counts.max())), -1, dtype=np.int64)
        inverse[slots[order], np.arange(len(slots)) - firsts[slots[order]]] = order
        # The common case costs nothing: no replicas, and every expert in the slot of its number.
        self._is_identity = np.array_equal(slots, np.arange(num_logical))
        self.num_logical = num_logical
        self.ep = ep
        self.physical_to_logical = slots
        self.logical_to_physical = inverse
        self.counts = counts
        for array in (slots, inverse, counts):
            array.flags.writeable = False

    @classmethod
    def initial(cls, slots: ExpertSlots) -> Placement:
        """The map before any statistics: slot p holds p mod logical."""
        return cls(slots.initial_logical(), num_logical=slots.num_logical, ep=slots.ep)

    @property
    def num_physical(self) -> int:
        """Slots of all ranks."""
        return len(self.physical_to_logical)

    @property
    def slots_per_rank(self) -> int:
        """Slots of one rank."""
        return self.num_physical // self.ep

    def local_experts(self, ep_rank: int) -> list[int]:
        """Logical expert of each slot of a rank."""
        begin = ep_rank * self.slots_per_rank
        experts: list[int] = self.physical_to_logical[begin : begin + self.slots_per_rank].tolist()
        return experts

    def slots(self, logical_ids: IntArray, ep_rank: int, row: int = 0) -> IntArray:
        """Slot that serves each choice: replica (ep_rank + row * 23333) mod count; -1 stays -1.

        Args:
            logical_ids: [T, K] int64.
            ep_rank: rank the rows stand on.
            row: number of the first row in its batch.
        """
        if self._is_identity:
            return logical_ids
        rows = np.arange(row, row + len(logical_ids), dtype=np.int64)
        spread = (ep_rank + rows * ROW_STRIDE)[:, None]
        chosen: IntArray = self.logical_to_physical[logical_ids, spread % self.counts[logical_ids]]
        return np.where(logical_ids < 0, -1, chosen)

    def num_avoidable_doubles(self) -> int:
        """Replicas that share a rank with one of their own while another rank has fewer."""
        held = self._held()
        # The fairest spread of n replicas puts at most ceil(n / ep) on a rank.
        most = -(-self.counts // self.ep)
        return int(np.maximum(held - most, 0).sum())

    def rank_loads(self, loads: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Load of each rank when replicas share evenly: [..., E] to [..., ep]."""
        each = (loads / self.counts)[..., self.physical_to_logical]
        summed: npt.NDArray[np.float64] = each.reshape(
            *loads.shape[:-1], self.ep, self.slots_per_rank
        ).sum(-1)
        return summed

    def _held(self) -> IntArray:
        held = np.zeros((self.ep, self.num_logical), dtype=np.int64)
        ranks = np.arange(self.num_physical) // self.slots_per_rank
        np.add.at(held, (ranks, self.physical_to_logical), 1)
        return held

    def __eq__(self, other: object) -> bool:
        """Whether every slot holds the same expert."""
        return (
            isinstance(other, Placement)
            and self.ep == other.ep
            and np.array_equal(self.physical_to_logical, other.physical_to_logical)
        )

    def __hash__(self) -> int:
        """Of the map."""
        return hash((self.ep, self.physical_to_logical.tobytes()))
