"""Everything that can be wrong with a layout, found at once and said with a way out.

V1 to V8 are the checks of the layout specification (V3 follows from V2); HEADS is about sharing
attention heads, SLOTS about redundant experts. Each message names both values that contradict each
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.parallel.errors import LayoutError
from engine.parallel.layout.ranks import Layout
from engine.parallel.layout.slots import ExpertSlots
from engine.parallel.layout.tables import TableShards
from engine.parallel.lockstep import EngineKind

Violations = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What limits sharing attention heads: query heads, and groups of the output projection."""

    num_heads: int
    num_groups: int

    @property
    def widths(self) -> tuple[int, ...]:
        """Every attn_tp that divides both."""
        common = math.gcd(self.num_heads, self.num_groups)
        return tuple(width for width in range(1, common + 1) if common % width == 0)


def check_layout(
    layout: Layout,
    *,
    kind: EngineKind = EngineKind.NORMAL,
    engine_rank: int | None = None,
    ranks_per_node: int | None = None,
    experts: ExpertSlots | None = None,
    engram_rows: Sequence[int] = (),
    attention: AttentionShape | None = None,
) -> Violations:
    """Finds everything wrong with a layout: (check, sentence) pairs, empty when it is valid.

    Checks about values that were not given are left out.
    """
    return [
        *_check_sizes(layout),
        *_check_use(layout, kind, engine_rank, ranks_per_node),
        *_check_tables(layout, experts, engram_rows),
        *check_heads(layout.attn_tp, attention),
    ]


def require_valid(layout: Layout, **known: object) -> None:
    """Runs `check_layout` with the same arguments.

    Raises:
        LayoutError: with every violated check.
    """
    violations = check_layout(layout, **known)  # type: ignore[arg-type]
    if violations:
        raise LayoutError(violations)


def check_heads(attn_tp: int, attention: AttentionShape | None) -> Violations:
    """Whether attn_tp ranks can share the heads without cutting an output group."""
    if attention is None or attn_tp in attention.widths:
        return []
    return [
        (
            "HEADS",
            f"attn_tp {attn_tp} does not divide both the {attention.num_heads} heads and the "
            f"{attention.num_groups} output groups: use one of "
            f"{', '.join(map(str, attention.widths))}",
        )
    ]


def _check_sizes(layout: Layout) -> Violations:
    found = []
    world, replica = layout.world_size, layout.replica_size
    axes, sizes = "dp * cp", f"{layout.dp} * {layout.cp}"
    if layout.attn_tp > 1:
        axes, sizes = f"{axes} * attn_tp", f"{sizes} * {layout.attn_tp}"
    if layout.store_ranks:
        if layout.enp not in (world, layout.store_ranks):
            found.append(
                (
                    "V1",
                    f"enp {layout.enp} with {layout.store_ranks} store ranks in a world of {world}:"
                    f" set enp to {layout.store_ranks} (store ranks alone hold the table) or "
                    f"{world} (all do)",
                )
            )
    elif world % replica or world % layout.enp:
        found.append(
            (
                "V1",
                f"enp {layout.enp} and {axes} = {sizes} = {replica} do not "
                f"divide one another: set enp to a divisor or a multiple of {replica}",
            )
        )
    if replica % layout.ep:
        found.append(
            (
                "V2",
                f"ep {layout.ep} does not divide {axes} = {sizes} = {replica}, "
                f"so an expert group would leave its replica: set dp to a multiple of "
                f"{layout.lockstep_block // layout.engine_size} or ep to a divisor of {replica}",
            )
        )
    return found


def _check_use(
    layout: Layout, kind: EngineKind, engine_rank: int | None, ranks_per_node: int | None
) -> Violations:
    found = []
    # Heads and sequences are shared inside one scale-up domain only.
    for name, width in (("cp", layout.cp), ("attn_tp", layout.attn_tp)):
        if ranks_per_node is not None and width > ranks_per_node:
            found.append(
                (
                    "V5",
                    f"{name} {width} is more than the {ranks_per_node} ranks of a node: lower "
                    f"{name} to {ranks_per_node} or less",
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
) -> Violations:
    found = []
    if experts is not None and (experts.ep != layout.ep or experts.num_physical % layout.ep):
        found.append(
            (
                "V4",
                f"{experts.num_physical} physical experts laid out for ep {experts.ep} cannot be "
                f"spread evenly over ep {layout.ep}: lay the slots out for ep {layout.ep}",
            )
        )
    if experts is not None and experts.min_redundant > experts.most_redundant:
        most, logical = experts.most_redundant, experts.num_logical
        reached = f"with which each of the {logical} experts is on all {experts.ep} ranks"
        way_out = f"give {most} or less"
        if experts.ep == 1:
            reached = f"that double each of the {logical} experts"
            way_out += "; with one rank (ep 1) none is of use"
        found.append(
            (
                "SLOTS",
                f"min_redundant {experts.min_redundant} is more than the {most} {reached}: "
                f"{way_out}",
            )
        )
    for rows in engram_rows:
        if not TableShards(num_rows=rows, enp=layout.enp).has_rows_everywhere:
            fitting = next(
                (
                    enp
                    for enp in range(layout.enp - 1, 0, -1)
                    if TableShards(num_rows=rows, enp=enp).has_rows_everywhere
                ),
                1,
            )
            found.append(
                (
                    "V7",
                    f"enp {layout.enp} leaves a rank without any of the Engram table's {rows} "
                    f"rows: lower enp to {fitting}",
                )
            )
    return found
