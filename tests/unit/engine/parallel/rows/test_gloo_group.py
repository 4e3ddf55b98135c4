"""The gloo row group without peers: a group of one, and what is refused before connecting."""

import pytest
import torch

from engine.parallel.layout import Channel, Transport
from engine.parallel.rows.gloo_group import GlooRowGroup
from engine.parallel.shared_memory import Progress
from engine.parallel.worker import RankContext


def channel(*members):
    return Channel(family="tp", purpose="rows", members=members, transport=Transport.DEVICE)


def test_a_group_of_one_sends_nothing():
    group = GlooRowGroup(RankContext(), channel(0), Progress())
    rows = torch.arange(4.0).reshape(2, 2)
    assert (group.name, group.rank, group.size) == ("tp", 0, 1)
    for found in (
        group.all_reduce(rows),
        group.all_gather(rows),
        group.all_gather_sized(rows, [2]),
        group.reduce_scatter(rows, [2]),
    ):
        assert torch.equal(found, rows)
    assert group.number == 0


def test_what_cannot_connect_is_refused():
    with pytest.raises(ValueError, match=r"rank 0 is no member of tp/rows\[1, 2\]"):
        GlooRowGroup(RankContext(), channel(1, 2), Progress())
    with pytest.raises(ValueError, match="needs a group with backend gloo, not 'local'"):
        GlooRowGroup(RankContext(num_ranks=2), channel(0, 1), Progress())


def test_sizes_that_are_not_the_rows_are_refused():
    group = GlooRowGroup(RankContext(), channel(0), Progress())
    with pytest.raises(ValueError, match=r"2 rows do not split into \[3\]"):
        group.reduce_scatter(torch.zeros(2, 1), [3])
    with pytest.raises(ValueError, match="2 rows are not the 3 of member 0"):
        group.all_gather_sized(torch.zeros(2, 1), [3])
