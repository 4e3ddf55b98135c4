"""Vote ports in one process: ranks are threads on one segment."""

import os
import threading

import numpy as np
import pytest

from engine.parallel.errors import PeerLost
from engine.parallel.lockstep import VoteVector
from engine.parallel.shared_memory import Exchange, Progress, Segment, create_segment
from engine.parallel.votes import Doorbell, LocalVote, SharedMemoryVote


@pytest.fixture
def descriptor():
    descriptor = create_segment()
    yield descriptor
    os.close(descriptor)


def open_vote(descriptor, rank, num_ranks):
    segment, progress = Segment(descriptor, num_ranks), Progress()
    exchange = Exchange(
        segment,
        "vote",
        rank=rank,
        group="voters",
        timeout_s=20.0,
        start_timeout_s=20.0,
        progress=progress,
    )
    doorbell = Doorbell(segment, rank=rank, group="voters", progress=progress)
    return SharedMemoryVote(segment, exchange, doorbell, rank, progress), progress, segment


def test_one_rank_gets_its_own_vector_and_may_keep_it():
    progress = Progress()
    vote = LocalVote(progress)
    vector = VoteVector(unfinished=True, decode_rows=2).to_array()
    reduced = vote.reduce_max(vector)
    assert reduced.tolist() == vector.tolist()
    vector[:] = 0
    assert reduced[0] == 1
    assert progress.step == 1


def test_one_rank_hears_a_ring_from_before_and_only_once():
    vote = LocalVote()
    vote.ring()
    vote.ring()
    vote.wait_for_work(30.0)
    vote.wait_for_work(0.001)
    threading.Timer(0.01, vote.ring).start()
    vote.wait_for_work(30.0)
    assert not vote._rung.is_set()


def test_every_rank_gets_the_maximum_of_each_field(descriptor):
    num_ranks, rounds = 3, 50
    generator = np.random.default_rng(5)
    vectors = generator.integers(-9, 9, (rounds, num_ranks, 9))
    results = [[] for _ in range(num_ranks)]
    votes = [open_vote(descriptor, rank, num_ranks) for rank in range(num_ranks)]

    def rank_main(rank):
        vote, _, _ = votes[rank]
        for number in range(rounds):
            results[rank].append(vote.reduce_max(vectors[number, rank]).tolist())

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)

    expected = vectors.max(axis=1).tolist()
    assert results == [expected] * num_ranks
    for _, progress, _ in votes:
        assert progress.step == rounds
        assert list(progress.last_vector) == expected[-1]


def test_a_ring_is_heard_by_every_rank_that_sleeps_or_will(descriptor):
    zero, one, two = (open_vote(descriptor, rank, 3)[0] for rank in range(3))
    for vote in (zero, one, two):
        vote.wait_for_work(0.001)
        vote.wait_for_work(0.001)
    sleeping = threading.Thread(target=zero.wait_for_work, args=(30.0,))
    sleeping.start()
    two.ring()
    sleeping.join(10.0)
    assert not sleeping.is_alive()
    # Not asleep yet when it rang: the next wait returns at once, also for the ringer.
    one.wait_for_work(30.0)
    two.wait_for_work(30.0)


def test_a_rank_whose_time_ran_out_brings_its_peers_along(descriptor):
    zero, one = (open_vote(descriptor, rank, 2)[0] for rank in range(2))
    for vote in (zero, one):
        vote.wait_for_work(0.001)
        vote.wait_for_work(0.001)
        vote.wait_for_work(0.001)
    patient = threading.Thread(target=zero.wait_for_work, args=(30.0,))
    patient.start()
    one.wait_for_work(0.01)
    patient.join(10.0)
    assert not patient.is_alive()


def test_rings_never_repeat_a_value_soon(descriptor):
    segment = Segment(descriptor, 2)
    bells = [Doorbell(segment, rank=rank, group="voters", progress=Progress()) for rank in range(2)]
    values = []
    for bell in bells * 20:
        bell.ring()
        values.append(segment.doorbell.load())
    assert len(set(values)) == len(values)


def test_an_idle_rank_learns_that_the_group_is_lost(descriptor):
    vote, _, segment = open_vote(descriptor, 0, 2)
    vote.wait_for_work(0.001)
    segment.abort(1)
    with pytest.raises(PeerLost, match="rank 1 failed while this rank was idle"):
        vote.wait_for_work(30.0)
