"""Joining with tables: which copy a rank reads, and which rows it owns."""

import dataclasses
import os
import threading

import pytest
import torch

from engine.parallel.dispatch import DispatchShape
from engine.parallel.joining import join_world
from engine.parallel.layout import Layout, RunLayout
from engine.parallel.shared_memory import create_segment
from engine.parallel.table_rows import RowTable
from engine.parallel.worker import RankContext

SHAPE = DispatchShape(hidden=4, top_k=2, max_tokens=3)
TABLE = RowTable(num_rows=600, width=2, dtype=torch.float32)


def join(layout: Layout, tables=(TABLE,)):
    """Joins all ranks of a layout as threads; returns their ends of the tables."""
    descriptor = create_segment()
    context = RankContext(
        num_ranks=layout.world_size, backend="shm", segment_fd=descriptor, start_timeout_s=20.0
    )
    found = [None] * layout.world_size

    def serve(rank):
        _, found[rank] = join_world(
            dataclasses.replace(context, rank=rank), RunLayout(layout=layout), SHAPE, tables
        )

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(layout.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    os.close(descriptor)
    return found


@pytest.mark.parametrize(
    ("layout", "owners"),
    [
        (Layout(dp=2, ep=2), [0, 1]),
        (Layout(dp=4, ep=4, enp=2), [0, 1, 0, 1]),
        (Layout(dp=2, ep=2, enp=2, store_ranks=2), [None, None, 0, 1]),
        (Layout(dp=2, ep=2, enp=3, store_ranks=1), [0, 1, 2]),
    ],
)
def test_owners_are_the_ranks_of_the_store_view(layout, owners):
    assert [tables.enp_rank for tables in join(layout)] == owners


def test_copies_are_separate_and_the_only_copy_is_everybodys():
    def number(rank):
        return lambda begin, count: (torch.full((count, 2), float(rank)), None)

    first, second = Layout(dp=4, ep=4, enp=2), Layout(dp=2, ep=2, enp=2, store_ranks=2)
    for layout, expected in ((first, [1.0, 1.0, 3.0, 3.0]), (second, [3.0] * 4)):
        ends = join(layout)
        for rank, tables in enumerate(ends):
            if tables.enp_rank is not None:
                tables.load([number(rank)])
        # Row 599 belongs to the second owner of each copy.
        found = [end.start_fetch([torch.tensor([[599]])])[0].wait() for end in ends]
        assert [float(rows.values[0, 0, 0]) for rows in found] == expected
        for end in ends:
            end.close()


def test_without_tables_nothing_is_mapped_for_them():
    assert join(Layout(dp=2, ep=2), ()) == [None, None]
