"""One gloo channel between threads: reductions, all-to-all, and what failures are called."""

import os
import threading

import pytest
import torch

from engine.parallel.channels import GlooChannel
from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.shared_memory import Progress, Segment, create_rendezvous, create_segment

pytestmark = [pytest.mark.medium, pytest.mark.timeout(60)]


@pytest.fixture
def run_ranks():
    """Runs a function per rank, each with its channel, in threads; returns their results."""
    descriptors = create_segment(), create_rendezvous()

    def run(num_ranks, rank_main, timeout_s=20.0):
        results = {}

        def open_and_run(rank):
            try:
                channel = GlooChannel(
                    descriptors[1],
                    Segment(descriptors[0], num_ranks),
                    "experts",
                    rank=rank,
                    group="talkers",
                    timeout_s=timeout_s,
                    start_timeout_s=20.0,
                    progress=Progress(step=4, step_kind="prefill"),
                )
                results[rank] = rank_main(channel)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=open_and_run, args=(r,)) for r in range(num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40.0)
        return results

    yield run
    for descriptor in descriptors:
        os.close(descriptor)


def test_reductions_and_uneven_all_to_all(run_ranks):
    def rank_main(channel):
        top = torch.tensor([channel.rank, -channel.rank])
        channel.all_reduce_max(top, "vote")
        sent_rows = [[0, 2], [1, 3]][channel.rank]
        received_rows = [[0, 1], [2, 3]][channel.rank]
        sent = torch.arange(float(sum(sent_rows)))[:, None] + 10 * channel.rank
        received = torch.empty(sum(received_rows), 1)
        channel.all_to_all(received, sent, received_rows, sent_rows, "dispatch")
        return top.tolist(), received.flatten().tolist(), channel.number

    # Exchange 1 is the warm-up.
    assert run_ranks(2, rank_main) == {
        0: ([1, 0], [10.0], 3),
        1: ([1, 0], [0.0, 1.0, 11.0, 12.0, 13.0], 3),
    }


def test_a_late_rank_is_named(run_ranks):
    done = threading.Event()

    def rank_main(channel):
        if channel.rank == 1:
            done.wait(30.0)
            return None
        try:
            channel.all_reduce_max(torch.zeros(1), "vote")
        finally:
            done.set()

    error = run_ranks(2, rank_main, timeout_s=0.2)[0]
    assert isinstance(error, CollectiveTimeout)
    assert error.late_ranks == (1,)
    assert "talkers: vote exchange 2 timed out after 0.2 s" in str(error)
    assert "step 4, kind prefill" in str(error)


def test_vectors_of_all_members_are_gathered(run_ranks):
    def rank_main(channel):
        mine = torch.tensor([channel.rank, 5 - channel.rank])
        return channel.all_gather(mine, "vote").tolist()

    gathered = [[0, 5], [1, 4], [2, 3]]
    assert run_ranks(3, rank_main) == {0: gathered, 1: gathered, 2: gathered}


def test_a_rank_that_died_in_an_exchange_is_named_once_its_supervisor_knows(run_ranks):
    def rank_main(channel):
        if channel.rank == 1:
            # It had begun the exchange, as its word says, when it died.
            channel._words[1] = 2
            marking = threading.Timer(0.2, channel._segment.abort, [1])
            marking.start()
            del channel._process_group
            return None
        channel.all_reduce_max(torch.zeros(1), "vote")
        return None

    error = run_ranks(2, rank_main)[0]
    assert isinstance(error, PeerLost)
    assert error.rank == 1


def test_a_failure_after_an_abort_names_the_culprit(run_ranks):
    def rank_main(channel):
        if channel.rank == 1:
            channel._segment.abort(1)
            return None
        channel.all_reduce_max(torch.zeros(1), "vote")
        return None

    error = run_ranks(2, rank_main, timeout_s=0.3)[0]
    assert isinstance(error, PeerLost)
    assert error.rank == 1
