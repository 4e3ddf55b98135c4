"""Changing the map of the experts at one agreed step.

Each rank prepares the next placement (plan, weights) at its own pace, then asks for the next
control epoch in its vote. The step at which all ranks ask for the same epoch is the step before
which every rank swaps. Pure: weights are moved by others.

States: settled -> prepare() -> asking -> agreed epoch -> settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.parallel.experts.placement import Placement

# Epochs below mean other things: 0 nothing, 1 the end of the step loop.
FIRST_EPOCH: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One expert's weights from a slot to a slot."""

    expert: int
    source_slot: int
    target_slot: int


def transfers(old: Placement, new: Placement) -> tuple[Transfer, ...]:
    """What must move so that slots of `old` become those of `new`, by target slot.

    A rank that holds the expert already copies locally. Otherwise each rank receives an expert
    once, even for two slots; receivers of one expert are dealt to its holders in turn.

    Raises:
        ValueError: the placements have different slots.
    """
    if (old.num_physical, old.ep, old.num_logical) != (new.num_physical, new.ep, new.num_logical):
        raise ValueError(
            f"{old.num_physical} slots on {old.ep} ranks cannot become {new.num_physical} on "
            f"{new.ep}: restart with the other layout"
        )
    moves: list[Transfer] = []
    turns = np.zeros(old.num_logical, dtype=np.int64)
    arrived: dict[tuple[int, int], int] = {}
    width = old.slots_per_rank
    for slot, expert in enumerate(new.physical_to_logical.tolist()):
        if old.physical_to_logical[slot] == expert:
            continue
        rank = slot // width
        holders = [int(h) for h in old.logical_to_physical[expert] if h >= 0]
        own = [holder for holder in holders if holder // width == rank]
        if own:
            source = own[0]
        elif (rank, expert) in arrived:
            source = arrived[rank, expert]
        else:
            source = holders[turns[expert] % len(holders)]
            turns[expert] += 1
            arrived[rank, expert] = source
        moves.append(Transfer(expert=expert, source_slot=source, target_slot=slot))
    return tuple(moves)


class PlacementSwap:
    """The map in force on one rank, and the one it is ready to change to.

    Args:
        placements: map of each layer.
    """

    __slots__ = ("_next", "num_swaps", "placements", "steps_since_swap")

    def __init__(self, placements: Sequence[Placement]) -> None:
        """Starts settled."""
        self.placements = tuple(placements)
        self.num_swaps = 0
        self.steps_since_swap = 0
        self._next: tuple[Placement, ...] | None = None

    @property
    def requested_epoch(self) -> int:
        """What this rank's vote asks for: the next epoch once it is ready, else nothing (0)."""
        return FIRST_EPOCH + self.num_swaps if self._next is not None else 0

    def prepare(self, placements: Sequence[Placement]) -> None:
        """This rank holds the weights of `placements` and is ready to swap.

        Raises:
            ValueError: another change is waiting, or the number of layers differs.
        """
        if self._next is not None:
            raise ValueError(
                f"epoch {self.requested_epoch} is not agreed yet: prepare the next map after it"
            )
        if len(placements) != len(self.placements):
            raise ValueError(
                f"{len(placements)} maps for {len(self.placements)} layers: give one each"
            )
        self._next = tuple(placements)

    def before_step(self, agreed_epoch: int | None) -> bool:
        """Takes a decision's agreed epoch; True when the new map acts from this step on."""
        if self._next is None or agreed_epoch != self.requested_epoch:
            self.steps_since_swap += 1
            return False
        self.placements, self._next = self._next, None
        self.num_swaps += 1
        self.steps_since_swap = 0
        return True
