"""The exchange: numbers, parities, time-outs and lost peers, on ranks that are threads."""

import os
import threading

import numpy as np
import pytest

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.shared_memory import (
    HEADER_BYTES,
    MAX_RANKS,
    Exchange,
    Progress,
    Segment,
    create_rendezvous,
    create_segment,
)


@pytest.fixture
def descriptor():
    descriptor = create_segment()
    yield descriptor
    os.close(descriptor)


def open_exchange(descriptor, rank, num_ranks=2, channel="experts", **timeouts):
    segment = Segment(descriptor, num_ranks)
    named = {"timeout_s": 20.0, "start_timeout_s": 20.0, **timeouts}
    exchange = Exchange(
        segment, channel, rank=rank, group="pair", progress=Progress(step_kind="decode"), **named
    )
    return segment, exchange


def run_ranks(num_ranks, rank_main):
    """Runs a function per rank in threads; returns the exceptions they raised."""
    raised = {}

    def run(rank):
        try:
            rank_main(rank)
        except Exception as error:
            raised[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in threads)
    return raised


def test_an_exchange_ends_when_all_have_published(descriptor):
    _, zero = open_exchange(descriptor, 0)
    _, one = open_exchange(descriptor, 1)
    for number in (1, 2, 3):
        zero.publish()
        assert zero.late_ranks() == [1]
        one.publish()
        one.wait("dispatch")
        zero.wait("dispatch")
        assert (zero.number, one.number) == (number, number)


def test_channels_count_independently(descriptor):
    _, experts = open_exchange(descriptor, 0, channel="experts")
    _, vote = open_exchange(descriptor, 0, channel="vote")
    _, peer = open_exchange(descriptor, 1, channel="vote")
    experts.publish()
    vote.publish()
    peer.publish()
    vote.wait("vote")
    assert experts.late_ranks() == [1]


@pytest.mark.medium
def test_two_areas_suffice_since_no_rank_is_two_exchanges_ahead(descriptor):
    """Each rank checks what it reads, and how far ahead the others are, in every exchange."""
    num_ranks, rounds = 3, 300
    body = Segment(descriptor, num_ranks).map_body(8 * 2 * num_ranks)
    areas = np.frombuffer(body, np.int64).reshape(2, num_ranks)
    most_ahead = [0] * num_ranks

    def rank_main(rank):
        segment, exchange = open_exchange(descriptor, rank, num_ranks)
        words = segment.words("experts")
        for number in range(1, rounds + 1):
            areas[number & 1, rank] = number * 10 + rank
            exchange.publish()
            exchange.wait("dispatch")
            most_ahead[rank] = max(most_ahead[rank], *(word - number for word in words))
            expected = [number * 10 + peer for peer in range(num_ranks)]
            assert areas[number & 1].tolist() == expected

    assert run_ranks(num_ranks, rank_main) == {}
    assert max(most_ahead) <= 1


def test_a_late_rank_is_named(descriptor):
    _, zero = open_exchange(descriptor, 0, 3, timeout_s=0.05, start_timeout_s=0.05)
    _, two = open_exchange(descriptor, 2, 3)
    zero.publish()
    two.publish()
    with pytest.raises(CollectiveTimeout) as caught:
        zero.wait("combine")
    assert caught.value.late_ranks == (1,)
    assert "group pair: combine exchange 1 timed out after 0.05 s; late ranks: 1" in str(
        caught.value
    )
    assert "step 0, kind decode" in str(caught.value)
    # Its peers are told who was late.
    with pytest.raises(PeerLost, match="rank 1 failed"):
        two.wait("combine")


def test_only_the_first_exchange_waits_for_the_start(descriptor):
    _, zero = open_exchange(descriptor, 0, timeout_s=0.05, start_timeout_s=20.0)
    _, one = open_exchange(descriptor, 1)
    zero.publish()
    waiting = threading.Thread(target=zero.wait, args=("start",))
    waiting.start()
    waiting.join(0.12)
    assert waiting.is_alive()
    one.publish()
    waiting.join(10.0)
    zero.publish()
    with pytest.raises(CollectiveTimeout, match=r"after 0\.05 s"):
        zero.wait("dispatch")


def test_an_abort_frees_the_waiting_at_once_and_the_first_mark_stays(descriptor):
    segment, _ = open_exchange(descriptor, 0, 3)
    errors = []

    def wait(rank):
        _, exchange = open_exchange(descriptor, rank, 3)
        exchange.publish()
        try:
            exchange.wait("dispatch")
        except PeerLost as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    segment.abort(2)
    segment.abort(0)
    for thread in threads:
        thread.join(10.0)

    assert [error.rank for error in errors] == [2, 2]
    assert "rank 2 failed while this rank waited in dispatch exchange 1" in str(errors[0])
    assert segment.aborted_by() == 2


def test_a_completed_exchange_does_not_mind_who_left_after_it(descriptor):
    segment, zero = open_exchange(descriptor, 0)
    _, one = open_exchange(descriptor, 1)
    zero.publish()
    one.publish()
    segment.mark_left(1)
    zero.wait("vote")
    zero.publish()
    with pytest.raises(PeerLost, match="rank 1 has ended before vote exchange 2"):
        zero.wait("vote")


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
    for channel in ("experts", "vote", "start"):
        words = segment.words(channel)
        for rank in range(MAX_RANKS):
            words[rank] = 3
        segment.gate(channel).store(9)
    rows = ("attention", "sequence", "domain", "rows")
    for number, channel in enumerate(rows):
        words = segment.words(channel)
        for rank in range(MAX_RANKS):
            words[rank] = 20 + number
    segment.doorbell.store(11)
    segment.mark_left(MAX_RANKS - 1)
    segment.abort(4)

    assert (segment.votes() == -1).all()
    assert (segment.geometry() == -2).all()
    assert segment.doorbell.load() == 11
    assert segment.aborted_by() == 4
    assert segment.has_left(MAX_RANKS - 1)
    assert not segment.has_left(0)
    assert all(set(segment.words(name)) == {3} for name in ("experts", "vote", "start"))
    assert [set(segment.words(name)) for name in rows] == [{20}, {21}, {22}, {23}]
    assert [segment.gate(name).load() for name in ("experts", "vote", "start")] == [9, 9, 9]


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
