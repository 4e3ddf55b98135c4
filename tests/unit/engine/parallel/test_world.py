"""Joining a world, with ranks that are threads."""

import dataclasses
import os
import threading

import pytest
import torch

from engine.parallel.areas import AreaPlan
from engine.parallel.dispatch import DispatchShape
from engine.parallel.errors import GeometryMismatch, LayoutError
from engine.parallel.layout import data_parallel, parse_layout
from engine.parallel.shared_memory import create_segment
from engine.parallel.table_rows import RowTable
from engine.parallel.worker import RankContext
from engine.parallel.world import World

SHAPE = DispatchShape(hidden=4, top_k=2, max_tokens=3)


@pytest.fixture
def context():
    descriptor = create_segment()
    yield RankContext(
        num_ranks=2, group_name="pair", backend="shm", segment_fd=descriptor, start_timeout_s=20.0
    )
    os.close(descriptor)


def join(context, runs, shapes=(SHAPE, SHAPE), tables=((), ())):
    """Joins two ranks; returns for each its world, or the error."""
    found = [None, None]

    def serve(rank):
        try:
            found[rank] = World(
                dataclasses.replace(context, rank=rank), runs[rank], shapes[rank], tables[rank]
            )
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    return found


def test_ranks_of_one_layout_meet_and_find_their_areas(context):
    worlds = join(context, [parse_layout("cp=2")] * 2)
    assert [world.rank for world in worlds] == [0, 1]
    assert [*worlds[0].channels][:3] == ["vote", "plans", "sequence"]
    assert "vote" not in worlds[1].channels
    areas = AreaPlan()
    areas.add("sequence", ((0, 1),), 10)
    for world in worlds:
        world.map_areas(areas)
    worlds[0].area(worlds[0].channels["sequence"])[3] = 7
    assert worlds[1].area(worlds[1].channels["sequence"])[3] == 7


def test_a_group_is_named_by_its_members_unless_it_is_the_world(context):
    (world, _) = join(context, [parse_layout("dp=2,ep=1")] * 2)
    assert world.name_of(None) == "pair"
    assert world.name_of(world.channels["vote"]) == "pair"
    assert world.name_of(world.channels["experts"]) == "pair ep/experts[0]"


def test_another_layout_is_refused_by_both(context):
    found = join(context, [parse_layout("cp=2"), data_parallel(2)])
    assert all(isinstance(error, GeometryMismatch) for error in found)
    assert "rank 0 came with layout dp=1,cp=2,ep=2 and 0 tables, rank 1 with others" in str(
        found[0]
    )


def test_other_tables_are_refused_by_both(context):
    tables = [(RowTable(num_rows=rows, width=2, dtype=torch.float32),) for rows in (5, 6)]
    found = join(context, [data_parallel(2)] * 2, tables=tables)
    assert all(isinstance(error, GeometryMismatch) for error in found)
    assert "rank 1 came with layout dp=2,ep=2 and 1 tables, rank 0 with others" in str(found[1])


def test_other_sizes_are_refused_by_both(context):
    other = dataclasses.replace(SHAPE, hidden=8)
    found = join(context, [data_parallel(2)] * 2, (SHAPE, other))
    assert "(hidden, top_k, max_tokens) = (4, 2, 3), rank 1 with (8, 2, 3)" in str(found[0])
    assert isinstance(found[1], GeometryMismatch)


def test_a_layout_of_another_number_of_ranks_is_refused(context):
    with pytest.raises(LayoutError, match="layout dp=3,ep=3 has 3 ranks, but 2 were started"):
        World(context, data_parallel(3), SHAPE)
