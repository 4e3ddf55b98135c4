"""Logical experts to physical slots on ranks, as the layers of a model use it.

Slot p lives on rank `p // slots_per_rank`. Redundant slots, and those that pad the count to a
multiple of the ranks, hold further replicas and share the rows of their expert. The arithmetic is
that of `engine.parallel.experts`; this is its tensor face.
"""

from dataclasses import dataclass

import torch

from engine.parallel.experts import Placement
from engine.parallel.layout import ExpertSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlacement:
    """Which expert each slot holds, equal on all ranks of a group.

    Args:
        num_logical: routed experts of the model.
        num_ranks: ranks that share them.
        min_redundant: fewest replicas beyond one of each.
        placement: the map; None is the initial one.
    """

    num_logical: int
    num_ranks: int
    min_redundant: int = 0
    placement: Placement | None = None

    def __post_init__(self) -> None:
        """Fills in the initial map."""
        if self.placement is None:
            slots = ExpertSlots(
                num_logical=self.num_logical, ep=self.num_ranks, min_redundant=self.min_redundant
            )
            object.__setattr__(self, "placement", Placement.initial(slots))

    @property
    def map(self) -> Placement:
        """The map in force."""
        assert self.placement is not None
        return self.placement

    @property
    def num_physical(self) -> int:
        """Slots of all ranks."""
        return self.map.num_physical

    @property
    def slots_per_rank(self) -> int:
        """Slots of one rank."""
        return self.map.slots_per_rank

    def local_experts(self, rank: int) -> list[int]:
        """Returns the logical expert of each slot of a rank."""
        return self.map.local_experts(rank)

    def slots(self, logical_ids: torch.Tensor, ep_rank: int = 0, row: int = 0) -> torch.Tensor:
        """Returns the slot that serves each choice; -1 stays -1.

        Args:
            logical_ids: [T, K] int64.
            ep_rank: Rank the rows stand on.
            row: Number of the first row in its batch; replicas are dealt by rank and row.
        """
        return torch.from_numpy(self.map.slots(logical_ids.numpy(), ep_rank, row))
