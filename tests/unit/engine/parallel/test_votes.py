"""Vote ports in one process: ranks are threads on one segment."""

import os
import threading

import numpy as np
import pytest
import torch

from engine.parallel.errors import PeerLost
from engine.parallel.exchange import Exchange
from engine.parallel.lockstep import VoteVector
from engine.parallel.shared_memory import Progress, Segment, create_segment
from engine.parallel.votes import Doorbell, GlooVote, LocalVote, SharedMemoryVote


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
    return SharedMemoryVote(segment, exchange, doorbell, progress), progress, segment


def test_one_rank_gets_its_own_vector_and_may_keep_it():
    progress = Progress()
    vote = LocalVote(progress)
    vector = VoteVector(unfinished=True, decode_rows=2).to_array()
    reduced = vote.reduce_max(vector)
    assert reduced.tolist() == vector.tolist()
    vector[:] = 0
    assert reduced[0] == 1
    assert progress.last_vector == (1, 0, 1, 1, 0, 2, 0, 0, 0)
    assert vote.gather(reduced).tolist() == [reduced.tolist()]


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
        # A vote is no step: the engine says which steps there are.
        assert progress.step == 0
        assert list(progress.last_vector) == expected[-1]


def test_every_rank_gets_the_vectors_of_all_and_may_keep_them(descriptor):
    num_ranks, rounds = 3, 6
    vectors = np.random.default_rng(5).integers(-9, 9, (rounds, num_ranks, 9))
    votes = [open_vote(descriptor, rank, num_ranks) for rank in range(num_ranks)]
    results = [[] for _ in range(num_ranks)]

    def rank_main(rank):
        vote, _, _ = votes[rank]
        for number in range(rounds):
            results[rank].append(vote.gather(vectors[number, rank]))

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)

    for found in results:
        np.testing.assert_array_equal(np.stack(found), vectors)
    for _, progress, _ in votes:
        assert list(progress.last_vector) == vectors[-1].max(axis=0).tolist()


class Meeting:
    """What `GlooVote` needs of a channel, between threads."""

    def __init__(self, num_ranks):
        self._barrier = threading.Barrier(num_ranks, timeout=20.0)
        self._vectors = []

    def all_reduce_max(self, vector, kind):
        assert kind == "vote"
        self._vectors.append(vector.clone())
        self._barrier.wait()
        vector[:] = torch.stack(self._vectors).amax(0)
        if self._barrier.wait() == 0:
            self._vectors.clear()
        self._barrier.wait()


class WatchedBell:
    """A doorbell word that counts sleeps."""

    def __init__(self, word):
        self._word = word
        self.num_sleeps = 0
        self.asleep = threading.Event()

    def wait(self, expected, timeout_s):
        self.num_sleeps += 1
        self.asleep.set()
        return self._word.wait(expected, timeout_s)

    def __getattr__(self, name):
        return getattr(self._word, name)


class Voters:
    """The vote ports of a group in one process, with their doorbells watched."""

    def __init__(self, descriptor, backend, num_ranks):
        opened = [open_vote(descriptor, rank, num_ranks) for rank in range(num_ranks)]
        self.votes = [vote for vote, _, _ in opened]
        self.segments = [segment for _, _, segment in opened]
        if backend == "gloo":
            channel = Meeting(num_ranks)
            self.votes = [
                GlooVote(channel, vote._doorbell, progress) for vote, progress, _ in opened
            ]
        self.bells = [WatchedBell(segment.doorbell) for segment in self.segments]
        for segment, bell in zip(self.segments, self.bells, strict=True):
            segment.doorbell = bell

    def round(self):
        """One idle round of all."""
        idle = VoteVector(unfinished=False).to_array()
        threads = [threading.Thread(target=vote.reduce_max, args=(idle,)) for vote in self.votes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
        assert not any(thread.is_alive() for thread in threads)
        for bell in self.bells:
            bell.asleep.clear()

    def sleeper(self, rank):
        """Puts a rank to sleep in a thread of its own."""
        thread = threading.Thread(target=self.votes[rank].wait_for_work, args=(30.0,))
        thread.start()
        assert self.bells[rank].asleep.wait(10.0)
        return thread

    @property
    def num_sleeps(self):
        return sum(bell.num_sleeps for bell in self.bells)


@pytest.fixture(params=["shm", "gloo"])
def voters(request, descriptor):
    return Voters(descriptor, request.param, 2)


def test_a_ring_is_heard_by_every_rank_that_sleeps_or_will(voters):
    one = voters.votes[1]
    voters.round()
    sleeping = voters.sleeper(0)
    one.ring()
    sleeping.join(10.0)
    assert not sleeping.is_alive()
    # Not asleep yet when it rang: the wait returns at once, also for the ringer.
    num_sleeps = voters.num_sleeps
    one.wait_for_work(30.0)
    assert voters.num_sleeps == num_sleeps


@pytest.mark.parametrize("ringer", [0, 1])
def test_a_ring_that_came_too_late_for_the_vote_of_its_rank_rouses_the_late_ranks_too(
    voters, ringer
):
    """A peer may hear a ring before it votes in a round that the ringer voted in before it."""
    early, late = voters.votes[ringer], voters.votes[1 - ringer]
    voters.round()
    early.ring()
    early.wait_for_work(30.0)
    # The ringer has looked for commands, found none, and goes to vote; now one comes.
    early.ring()
    late.wait_for_work(30.0)
    voters.round()
    early.wait_for_work(30.0)
    late.wait_for_work(30.0)
    assert voters.num_sleeps == 0


def test_a_ring_while_all_vote_rouses_all_and_does_not_keep_them_awake(voters):
    one = voters.votes[1]
    voters.round()
    one.ring()
    num_rounds = 0
    while voters.num_sleeps == 0:
        for vote in voters.votes:
            vote.wait_for_work(0.001)
        voters.round()
        num_rounds += 1
    assert 2 <= num_rounds <= 3


def test_a_rank_whose_time_ran_out_brings_its_peers_along(voters):
    voters.round()
    patient = voters.sleeper(0)
    voters.votes[1].wait_for_work(0.01)
    patient.join(10.0)
    assert not patient.is_alive()


def test_whoever_leaves_a_rest_opens_it_for_a_peer_that_comes_later(voters):
    voters.round()
    voters.votes[0].wait_for_work(0.001)
    num_sleeps = voters.num_sleeps
    voters.votes[1].wait_for_work(30.0)
    assert voters.num_sleeps == num_sleeps
    # Of that rest only: the next one is slept.
    voters.round()
    voters.votes[1].wait_for_work(0.001)
    assert voters.num_sleeps == num_sleeps + 1


def test_a_ring_for_a_rest_that_is_over_does_not_end_the_next(voters):
    voters.round()
    sleeping = voters.sleeper(0)
    stale = next(voters.votes[1]._doorbell._marks)
    voters.bells[0].asleep.clear()
    voters.segments[1].doorbell.store(stale)
    voters.segments[1].doorbell.wake_all()
    assert voters.bells[0].asleep.wait(10.0)
    assert sleeping.is_alive()
    voters.votes[1].ring()
    sleeping.join(10.0)
    assert not sleeping.is_alive()


def test_rings_never_repeat_a_value_soon(descriptor):
    segment = Segment(descriptor, 2)
    bells = [Doorbell(segment, rank=rank, group="voters", progress=Progress()) for rank in range(2)]
    values = []
    for bell in bells * 20:
        bell.ring()
        values.append(segment.doorbell.load())
    assert len(set(values)) == len(values)


def test_an_idle_rank_learns_that_the_group_is_lost(voters):
    voters.round()
    voters.segments[0].abort(1)
    with pytest.raises(PeerLost, match="rank 1 failed while this rank was idle"):
        voters.votes[0].wait_for_work(30.0)
