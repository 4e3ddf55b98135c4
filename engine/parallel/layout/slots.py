"""Physical expert slots of a layer: logical experts, redundant ones and padding, over ep ranks."""

from __future__ import annotations

from dataclasses import dataclass

from engine.parallel.errors import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlots:
    """Physical expert slots of one layer, equally many on each ep rank.

    Slot p lives on ep rank `p // slots_per_rank` at place `p % slots_per_rank`.

    Args:
        num_logical: routed experts of the model.
        ep: ranks that share them.
        min_redundant: fewest replicas beyond one of each; a floor for the layer, not per rank.

    Raises:
        LayoutError: a size out of range.
    """

    num_logical: int
    ep: int
    min_redundant: int = 0

    def __post_init__(self) -> None:
        """Refuses sizes out of range."""
        for name, lowest in (("num_logical", 1), ("ep", 1), ("min_redundant", 0)):
            size = getattr(self, name)
            if size < lowest:
                raise LayoutError([("SIZE", f"{name} is {size}, must be at least {lowest}")])

    @property
    def num_padding(self) -> int:
        """Slots added so that all ranks hold equally many."""
        return -(self.num_logical + self.min_redundant) % self.ep

    @property
    def most_redundant(self) -> int:
        """The most replicas that may be asked for: with more, an expert is on some rank twice.

        One rank has no use for any, but may hold a copy of each: both sides of a system are given
        the same number, and one of them may be a single rank.
        """
        return self.num_logical * max(self.ep - 1, 1)

    @property
    def num_extra(self) -> int:
        """Slots beyond one per logical expert."""
        return self.min_redundant + self.num_padding

    @property
    def num_physical(self) -> int:
        """All slots of the layer."""
        return self.num_logical + self.num_extra

    @property
    def slots_per_rank(self) -> int:
        """Slots on each rank."""
        return self.num_physical // self.ep

    def place(self, slot: int) -> tuple[int, int]:
        """Expert rank of a physical slot, and its local position there."""
        return divmod(slot, self.slots_per_rank)

    def initial_logical(self) -> tuple[int, ...]:
        """Logical expert in each physical slot before any rebalancing."""
        return tuple(slot % self.num_logical for slot in range(self.num_physical))

    def local_logical(self, ep_rank: int) -> tuple[int, ...]:
        """Logical experts that a rank holds before any rebalancing, in slot order."""
        start = ep_rank * self.slots_per_rank
        return self.initial_logical()[start : start + self.slots_per_rank]

    def bytes_per_rank(self, expert_bytes: int) -> int:
        """Expert weights of one layer on one rank, in bytes."""
        return self.slots_per_rank * expert_bytes
