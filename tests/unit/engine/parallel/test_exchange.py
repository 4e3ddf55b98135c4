"""The exchange: numbers, parities, groups, time-outs and lost peers, on ranks that are threads."""

import os
import threading

import numpy as np
import pytest

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.exchange import Exchange
from engine.parallel.shared_memory import Progress, Segment, create_segment


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


def test_groups_of_a_channel_do_not_wait_for_each_other(descriptor):
    ends = [
        open_exchange(descriptor, rank, 4, members=members)[1]
        for members in ((0, 2), (1, 3))
        for rank in members
    ]
    assert [(end.rank, end.size) for end in ends] == [(0, 2), (1, 2)] * 2
    ends[0].publish()
    ends[1].publish()
    ends[0].wait("vote")
    ends[2].publish()
    assert ends[2].late_ranks() == [3]


def test_a_late_member_is_named_by_its_rank_in_the_world(descriptor):
    _, end = open_exchange(descriptor, 1, 4, members=(1, 3), timeout_s=0.05, start_timeout_s=0.05)
    end.publish()
    with pytest.raises(CollectiveTimeout) as caught:
        end.wait("vote")
    assert caught.value.late_ranks == (3,)


@pytest.mark.medium
def test_who_waits_for_a_late_rank_is_not_blamed_for_it(descriptor):
    """Rank 1 stands still; rank 0 waits for it in an inner group and is late in the outer one."""
    segment, inner = open_exchange(descriptor, 0, 3, channel="attention", members=(0, 1))
    inner.publish()
    raised = {}

    def wait_inside():
        try:
            inner.wait("all_gather")
        except PeerLost as error:
            raised[0] = error

    waiter = threading.Thread(target=wait_inside)
    waiter.start()
    _, outer = open_exchange(descriptor, 2, 3, timeout_s=0.4, start_timeout_s=0.4)
    outer.publish()
    with pytest.raises(CollectiveTimeout) as caught:
        outer.wait("combine")
    waiter.join(10.0)
    assert caught.value.late_ranks == (1,)
    assert segment.aborted_by() == 1
    assert raised[0].rank == 1
    assert not segment.is_waiting(0)


def test_exchanges_published_ahead_are_waited_for_later_in_order(descriptor):
    ends = [open_exchange(descriptor, rank)[1] for rank in range(2)]
    assert [ends[0].publish_ahead() for _ in range(3)] == [1, 2, 3]
    assert ends[1].publish_ahead() == 1
    for end in ends:
        end.wait("all_gather", 1)
    assert ends[0].late_ranks(2) == [1]
    assert ends[0].late_ranks(1) == []


def test_the_last_to_publish_ahead_wakes_those_who_wait(descriptor):
    """It may come late to its own wait, so nobody else would."""
    _, zero = open_exchange(descriptor, 0)
    segment, one = open_exchange(descriptor, 1)
    zero.publish_ahead()
    assert segment.gate("experts").load() == 0
    one.publish_ahead()
    assert segment.gate("experts").load() == 1
    # An older exchange never puts the gate back.
    one.publish_ahead()
    zero.publish_ahead()
    zero.wait("all_gather", 2)
    one.wait("all_gather", 1)
    assert segment.gate("experts").load() == 2
