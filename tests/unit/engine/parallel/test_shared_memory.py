"""The segment: what stands in it does not overlap, and every mapping sees the same."""

import os

import pytest

from engine.parallel.shared_memory import (
    CHANNELS,
    HEADER_BYTES,
    MAX_RANKS,
    Segment,
    create_rendezvous,
    create_segment,
    spread,
)


@pytest.fixture
def descriptor():
    descriptor = create_segment()
    yield descriptor
    os.close(descriptor)


def test_the_body_is_shared_and_starts_as_zeros(descriptor):
    one, other = Segment(descriptor, 2), Segment(descriptor, 2)
    first, second = one.map_body(5000), other.map_body(5000)
    assert len(first) == 5000
    assert not any(second)
    first[4999] = 7
    assert second[4999] == 7
    assert os.fstat(descriptor).st_size == HEADER_BYTES + 5000


def test_tables_of_the_header_do_not_overlap(descriptor):
    segment = Segment(descriptor, MAX_RANKS)
    segment.votes()[:] = -1
    segment.geometry()[:] = -2
    segment.opened_rests()[MAX_RANKS - 1] = 6
    for number, channel in enumerate(CHANNELS):
        words = segment.words(channel)
        for rank in range(MAX_RANKS):
            words[rank] = 20 + number
            segment.gate(channel, rank).store(1000 * number + rank)
    segment.doorbell.store(11)
    segment.mark_left(MAX_RANKS - 1)
    segment.abort(4)

    assert (segment.votes() == -1).all()
    assert (segment.geometry() == -2).all()
    assert segment.doorbell.load() == 11
    assert segment.aborted_by() == 4
    assert segment.has_left(MAX_RANKS - 1)
    assert not segment.has_left(0)
    assert segment.opened_rests()[MAX_RANKS - 1] == 6
    for number, channel in enumerate(CHANNELS):
        assert set(segment.words(channel)) == {20 + number}
        found = [segment.gate(channel, rank).load() for rank in range(MAX_RANKS)]
        assert found == [1000 * number + rank for rank in range(MAX_RANKS)]


def test_words_of_a_group_are_those_of_its_members(descriptor):
    segment = Segment(descriptor, 6)
    for rank in range(6):
        segment.words("vote")[rank] = rank
        segment.opened_rests()[rank] = 10 * rank
    assert list(segment.words("vote", (1, 3, 5))) == [1, 3, 5]
    assert list(segment.opened_rests((2, 3))) == [20, 30]
    segment.words("vote", (4,))[0] = 44
    assert list(segment.words("vote")) == [0, 1, 2, 3, 44, 5]


@pytest.mark.parametrize("members", [(0, 1, 3), (2, 1), (1, 1)])
def test_ranks_at_uneven_distances_are_refused(members):
    with pytest.raises(ValueError, match="do not stand at even distances"):
        spread(members)


@pytest.mark.parametrize("num_ranks", [0, MAX_RANKS + 1])
def test_too_many_or_no_ranks_are_refused(descriptor, num_ranks):
    with pytest.raises(ValueError, match=f"num_ranks {num_ranks} is not in 1..{MAX_RANKS}"):
        Segment(descriptor, num_ranks)


def test_closing_unmaps_and_the_rendezvous_file_is_empty(descriptor):
    segment = Segment(descriptor, 2)
    segment.map_body(100).release()
    segment.close()
    segment.close()
    with pytest.raises(ValueError):
        segment.words("vote")
    rendezvous = create_rendezvous()
    assert os.fstat(rendezvous).st_size == 0
    os.close(rendezvous)
