"""Sizes, coordinates and groups of the ranks, and where the experts live. Pure arithmetic.

One numbering of ranks: cp innermost, dp in the middle, replica outermost. Every family of groups
is one rearrangement of the list of ranks. Knows no process and no tensor library.

Invariants:
- the groups of each family partition the ranks;
- a resolved layout passed all checks, so every division below is exact.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from einops import rearrange

from engine.parallel.errors import LayoutError
from engine.parallel.lockstep import EngineKind

Groups = tuple[tuple[int, ...], ...]

ENGRAM_ROW_ALIGNMENT: Final = 256


class Family(enum.Enum):
    """Families of groups; each partitions the ranks."""

    DP = "dp"
    CP = "cp"
    EP = "ep"
    ENP = "enp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where one rank stands in every view."""

    rank: int
    replica: int
    dp: int
    cp: int
    engine: int
    ep_rank: int
    ep_group: int
    enp_rank: int
    enp_group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of the parallel axes.

    Args:
        dp: engines per replica; 0 means max(1, ep // cp).
        cp: ranks that share the tokens of one engine.
        ep: ranks that share the experts.
        enp: ranks that share one copy of the Engram table; 0 means dp * cp.

    Raises:
        LayoutError: a size below 1 (below 0 where 0 has a meaning).
    """

    dp: int = 0
    cp: int = 1
    ep: int = 1
    enp: int = 0

    def __post_init__(self) -> None:
        """Fills in the derived sizes."""
        for name, lowest in (("cp", 1), ("ep", 1), ("dp", 0), ("enp", 0)):
            size = getattr(self, name)
            if size < lowest:
                raise LayoutError([("SIZE", f"{name} is {size}, must be at least {lowest}")])
        if not self.dp:
            object.__setattr__(self, "dp", max(1, self.ep // self.cp))
        if not self.enp:
            object.__setattr__(self, "enp", self.dp * self.cp)

    @property
    def replica_size(self) -> int:
        """Ranks of one model replica."""
        return self.dp * self.cp

    @property
    def world_size(self) -> int:
        """All ranks."""
        return max(self.enp, self.replica_size)

    @property
    def num_replicas(self) -> int:
        """Model replicas in the world."""
        return self.world_size // self.replica_size

    @property
    def num_table_copies(self) -> int:
        """Complete copies of the Engram table in the world."""
        return self.world_size // self.enp

    @property
    def num_engines(self) -> int:
        """Engines: sets of cp ranks with one scheduler and one KV."""
        return self.world_size // self.cp

    @property
    def lockstep_block(self) -> int:
        """Ranks tied together by the collectives of a step; blocks are contiguous."""
        return math.lcm(self.ep, self.cp)

    @property
    def is_dp_family_sufficient(self) -> bool:
        """Whether agreement over the DP groups covers every lockstep block."""
        return self.replica_size % self.lockstep_block == 0

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a global rank.

        Raises:
            ValueError: no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in 0..{self.world_size - 1}")
        engine, cp = divmod(rank, self.cp)
        replica, dp = divmod(engine, self.dp)
        ep_group, ep_rank = divmod(rank, self.ep)
        enp_group, enp_rank = divmod(rank, self.enp)
        return Coordinates(
            rank=rank,
            replica=replica,
            dp=dp,
            cp=cp,
            engine=engine,
            ep_rank=ep_rank,
            ep_group=ep_group,
            enp_rank=enp_rank,
            enp_group=enp_group,
        )

    def rank_of(self, *, replica: int, dp: int, cp: int) -> int:
        """Global rank at attention coordinates."""
        return (replica * self.dp + dp) * self.cp + cp

    def groups(self, family: Family) -> Groups:
        """Groups of a family, each in axis order, by first member."""
        pattern, sizes = {
            Family.DP: ("(replica dp cp) -> (replica cp) dp", {"dp": self.dp, "cp": self.cp}),
            Family.CP: ("(engine cp) -> engine cp", {"cp": self.cp}),
            Family.EP: ("(group ep) -> group ep", {"ep": self.ep}),
            Family.ENP: ("(copy enp) -> copy enp", {"enp": self.enp}),
        }[family]
        return _as_groups(rearrange(np.arange(self.world_size), pattern, **sizes))

    def lockstep_blocks(self) -> Groups:
        """The lockstep blocks, as groups."""
        block = self.lockstep_block
        return _as_groups(
            rearrange(np.arange(self.world_size), "(block rank) -> block rank", rank=block)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlots:
    """Physical expert slots of one layer: logical experts, replicas and padding, over ep ranks.

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


def check_layout(
    layout: Layout,
    *,
    kind: EngineKind = EngineKind.NORMAL,
    engine_rank: int | None = None,
    ranks_per_node: int | None = None,
    experts: ExpertSlots | None = None,
    engram_rows: Sequence[int] = (),
) -> list[tuple[str, str]]:
    """Finds everything wrong with a layout: (check, sentence) pairs, empty when it is valid.

    Checks are V1, V2 (which implies V3) and V4 to V8 of the layout specification; those about
    values that were not given are left out.
    """
    return [
        *_check_sizes(layout),
        *_check_use(layout, kind, engine_rank, ranks_per_node),
        *_check_tables(layout, experts, engram_rows),
    ]


def require_valid(layout: Layout, **known: object) -> None:
    """Runs `check_layout` with the same arguments.

    Raises:
        LayoutError: with every violated check.
    """
    violations = check_layout(layout, **known)  # type: ignore[arg-type]
    if violations:
        raise LayoutError(violations)


def _check_sizes(layout: Layout) -> list[tuple[str, str]]:
    found = []
    world, replica = layout.world_size, layout.replica_size
    if world % replica or world % layout.enp:
        found.append(
            (
                "V1",
                f"enp {layout.enp} and dp * cp = {layout.dp} * {layout.cp} = {replica} do not "
                f"divide one another: set enp to a divisor or a multiple of {replica}",
            )
        )
    if replica % layout.ep:
        found.append(
            (
                "V2",
                f"ep {layout.ep} does not divide dp * cp = {layout.dp} * {layout.cp} = {replica}, "
                f"so an expert group would leave its replica: set dp to a multiple of "
                f"{math.lcm(layout.ep, layout.cp) // layout.cp} or ep to a divisor of {replica}",
            )
        )
    return found


def _check_use(
    layout: Layout, kind: EngineKind, engine_rank: int | None, ranks_per_node: int | None
) -> list[tuple[str, str]]:
    found = []
    if ranks_per_node is not None and layout.cp > ranks_per_node:
        found.append(
            (
                "V5",
                f"cp {layout.cp} is more than the {ranks_per_node} ranks of a node: lower cp to "
                f"{ranks_per_node} or less",
            )
        )
    if layout.cp > 1 and kind is EngineKind.DECODE:
        found.append(
            (
                "V6",
                f"cp {layout.cp} with a {kind.value} engine: decode never splits a sequence, set "
                f"cp to 1 here and keep it for prefill",
            )
        )
    if engine_rank is not None and not 0 <= engine_rank < layout.num_engines:
        found.append(
            (
                "V8",
                f"engine_rank {engine_rank} is outside 0..{layout.num_engines - 1}: the world of "
                f"{layout.world_size} ranks with cp {layout.cp} has {layout.num_engines} engines",
            )
        )
    return found


def _check_tables(
    layout: Layout, experts: ExpertSlots | None, engram_rows: Sequence[int]
) -> list[tuple[str, str]]:
    found = []
    if experts is not None and (experts.ep != layout.ep or experts.num_physical % layout.ep):
        found.append(
            (
                "V4",
                f"{experts.num_physical} physical experts laid out for ep {experts.ep} cannot be "
                f"spread evenly over ep {layout.ep}: lay the slots out for ep {layout.ep}",
            )
        )
    for rows in engram_rows:
        if not _has_rows_everywhere(rows, layout.enp):
            fitting = next(
                (enp for enp in range(layout.enp - 1, 0, -1) if _has_rows_everywhere(rows, enp)), 1
            )
            found.append(
                (
                    "V7",
                    f"enp {layout.enp} leaves a rank without any of the Engram table's {rows} "
                    f"rows: lower enp to {fitting}",
                )
            )
    return found


def _has_rows_everywhere(rows: int, enp: int) -> bool:
    align = math.lcm(ENGRAM_ROW_ALIGNMENT, enp)
    rows_per_rank = -(-rows // align) * align // enp
    return (enp - 1) * rows_per_rank < rows


def _as_groups(table: np.ndarray) -> Groups:
    return tuple(tuple(int(rank) for rank in row) for row in table)
