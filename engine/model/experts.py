"""Logical experts to physical slots on ranks.

Slot p lives on rank `p // slots_per_rank`. Slots beyond the logical experts, which pad the count to
a multiple of the ranks, hold copies and take no rows yet.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlacement:
    """Which expert each slot holds, equal on all ranks of a group."""

    num_logical: int
    num_ranks: int

    @property
    def num_physical(self) -> int:
        """Slots of all ranks."""
        return -(-self.num_logical // self.num_ranks) * self.num_ranks

    @property
    def slots_per_rank(self) -> int:
        """Slots of one rank."""
        return self.num_physical // self.num_ranks

    def local_experts(self, rank: int) -> list[int]:
        """Returns the logical expert of each slot of a rank."""
        begin = rank * self.slots_per_rank
        return [slot % self.num_logical for slot in range(begin, begin + self.slots_per_rank)]

    def slots(self, logical_ids: torch.Tensor) -> torch.Tensor:
        """Returns the slot that serves each logical expert id; -1 stays -1."""
        return logical_ids
