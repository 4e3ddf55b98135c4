"""Joining a world with all its memory: areas of the channels, and tables whose rows ranks share."""

from __future__ import annotations

from collections.abc import Sequence

from engine.parallel.areas import AreaPlan
from engine.parallel.dispatch import DispatchShape
from engine.parallel.dispatch_shm import area_bytes
from engine.parallel.layout import Channel, Family, Layout, RunLayout, Transport
from engine.parallel.plans.queue import queue_area_bytes
from engine.parallel.rows.shm_group import row_area_bytes
from engine.parallel.table_rows import MappedTables, RowTable, TableMemory
from engine.parallel.worker import RankContext
from engine.parallel.world import World

# Purposes of the channels that carry rows, and the families of their groups.
ROW_CHANNELS = {
    "sequence": Family.CP,
    "attention": Family.ATTN_TP,
    "domain": Family.DOMAIN,
}


def join_world(
    context: RankContext, run: RunLayout, shape: DispatchShape, tables: Sequence[RowTable]
) -> tuple[World, MappedTables | None]:
    """Meets the other ranks and maps what all of them share; a collective of the world.

    Returns:
        The world, and this rank's end of the tables if there are any.

    Raises:
        LayoutError, GeometryMismatch, GroupError: see `World`.
    """
    world = World(context, run, shape, tables)
    layout = run.layout
    areas = _areas(layout, shape, has_domain=not run.all_to_all)
    memory = TableMemory(tables=tuple(tables), enp=layout.enp)
    groups = layout.groups(Family.ENP)
    if tables:
        areas.add("table", groups, memory.num_bytes)
    world.map_areas(areas)
    if not tables:
        return world, None
    # Where store ranks hold the only copy, ranks of no table group read from theirs.
    members = next((group for group in groups if world.rank in group), groups[0])
    channel = Channel(
        family=Family.ENP.value, purpose="table", members=members, transport=Transport.ONE_SIDED
    )
    enp_rank = layout.coordinates(world.rank).enp_rank
    return world, MappedTables(memory, world.area(channel), enp_rank=enp_rank)


def _areas(layout: Layout, shape: DispatchShape, *, has_domain: bool) -> AreaPlan:
    """Areas of all channels of all ranks, also of transports that do not use them: untouched."""
    areas = AreaPlan()
    areas.add("experts", layout.groups(Family.EP), area_bytes(shape, layout.ep))
    if layout.engine_size > 1:
        areas.add("plans", layout.groups(Family.ENGINE), queue_area_bytes())
    for purpose, family in ROW_CHANNELS.items():
        groups = layout.groups(family)
        if len(groups[0]) > 1 and (has_domain or family is not Family.DOMAIN):
            areas.add(purpose, groups, row_area_bytes(len(groups[0])))
    return areas
