"""Logical experts to physical slots on ranks, and the experts of one rank, as layers use them.

Slot p lives on rank `p // slots_per_rank`. Redundant slots, and those that pad the count to a
multiple of the ranks, hold further replicas and share the rows of their expert. The arithmetic is
that of `engine.parallel.experts`; this is its tensor face.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from disagg_kernels import Kernels
from engine.model.config import ModelConfig
from engine.model.weights import WHOLE, Share, Weights
from engine.parallel.dispatch import Dispatcher, DispatchShape, LocalDispatcher
from engine.parallel.experts import Placement
from engine.parallel.layout import ExpertSlots
from engine.parallel.rank_groups import RankGroups
from engine.parallel.rows.modes import Path

# Rows of a step of a whole domain, which no port's size bounds.
_ANY_ROWS = 1 << 31


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """What one rank has of a layer's experts.

    Args:
        rank, num_ranks: among the ranks that share the slots.
        inner: its part of every expert's inner width.
        is_dispatched: whether rows travel to it; else it sees all rows and skips other ranks'
            slots.
    """

    rank: int
    num_ranks: int
    inner: Share = WHOLE
    is_dispatched: bool = True

    @classmethod
    def of(cls, groups: RankGroups, dispatcher: Dispatcher) -> ExpertShare:
        """The share that a rank's groups give it: of the dispatcher's ranks, or of the domain's."""
        if groups.path in (Path.DIRECT, Path.B):
            return cls(rank=dispatcher.rank, num_ranks=dispatcher.num_ranks)
        rank, part = divmod(groups.domain.rank, groups.moe_tp)
        return cls(
            rank=rank,
            num_ranks=groups.moe_ep,
            inner=Share(rank=part, size=groups.moe_tp),
            is_dispatched=False,
        )


class RoutedExperts:
    """The routed experts of one rank.

    Raises:
        ValueError: a placement for another number of ranks, or a width that does not divide.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        share: ExpertShare,
        placement: ExpertPlacement,
        dispatcher: Dispatcher,
        ops: Kernels,
        min_rows: int,
    ) -> None:
        self._weights = weights
        self._prefix = prefix
        self._share = share
        self._ops = ops
        self._limit = config.swiglu_limit
        self._min_rows = min_rows
        self._dispatcher = dispatcher
        if not share.is_dispatched:
            self._dispatcher = LocalDispatcher(
                DispatchShape(
                    hidden=config.hidden_size,
                    top_k=config.num_experts_per_tok,
                    max_tokens=_ANY_ROWS,
                )
            )
        self.adopt(placement)

    def adopt(self, placement: ExpertPlacement) -> None:
        """Loads this rank's experts of a placement and routes by it; between two steps."""
        share = self._share
        if placement.num_ranks != share.num_ranks:
            raise ValueError(
                f"the placement is for {placement.num_ranks} ranks, but {share.num_ranks} share "
                "the experts: make it for as many"
            )
        self._gate_up, self._down = self._weights.experts(
            self._prefix, placement.local_experts(share.rank), share.inner
        )
        self._placement = placement

    def __call__(
        self, x: torch.Tensor, logical_ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Rows and their choices to the results of the chosen experts.

        Args:
            x: [T, d].
            logical_ids: [T, k] int64, -1 for none.
            weights: [T, k] float32.

        Returns:
            [T, k, d], finished if rows are dispatched, else this rank's part: zeros for experts of
            other ranks.
        """
        sent = self._dispatcher.dispatch(
            x, self._slots(logical_ids), weights, self._placement.slots_per_rank
        )
        outputs = self._ops.grouped_experts(
            sent.rows,
            sent.row_weights,
            sent.local_slots,
            self._gate_up,
            self._down,
            self._limit,
            self._min_rows,
        )
        return self._dispatcher.combine(outputs, sent.handle)

    def _slots(self, logical_ids: torch.Tensor) -> torch.Tensor:
        placement, share = self._placement, self._share
        if share.is_dispatched:
            return placement.slots(logical_ids, share.rank)
        # Every rank sees the same rows in the same order, so all choose the same replicas.
        slots = placement.slots(logical_ids) - share.rank * placement.slots_per_rank
        return slots.masked_fill_((slots < 0) | (slots >= placement.slots_per_rank), -1)
