"""The queue from a leader to its followers, with ranks that are threads."""

import os
import threading

import pytest

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.plans.queue import NUM_SLOTS, SLOT_BYTES, PlanQueue, queue_area_bytes
from engine.parallel.shared_memory import Progress, Segment, create_segment

MEMBERS = (2, 3, 4)


@pytest.fixture
def descriptor():
    descriptor = create_segment()
    yield descriptor
    os.close(descriptor)


def open_queue(descriptor, rank, timeout_s=20.0):
    segment = Segment(descriptor, 6)
    return segment, PlanQueue(
        segment,
        segment.map_body(queue_area_bytes()),
        members=MEMBERS,
        rank=rank,
        group="trio",
        timeout_s=timeout_s,
        progress=Progress(step=7, step_kind="prefill"),
    )


def take_all(descriptor, rank, count, found):
    _, queue = open_queue(descriptor, rank)
    assert not queue.is_leader
    found[rank] = [bytes(queue.take()) for _ in range(count)]


def test_followers_get_every_message_in_order(descriptor):
    _, leader = open_queue(descriptor, 2)
    assert leader.is_leader
    messages = [b"", b"x", bytes(range(256)) * 3] * 10
    found = {}
    threads = [
        threading.Thread(target=take_all, args=(descriptor, rank, len(messages), found))
        for rank in MEMBERS[1:]
    ]
    for thread in threads:
        thread.start()
    for message in messages:
        # In parts, with empty ones between.
        leader.put([message[:5], b"", bytearray(message[5:])])
    for thread in threads:
        thread.join(30.0)
    assert found == {3: messages, 4: messages}


@pytest.mark.medium
def test_a_message_may_be_larger_than_the_queue(descriptor):
    _, leader = open_queue(descriptor, 2)
    large = os.urandom(1000) * ((NUM_SLOTS + 3) * SLOT_BYTES // 1000)
    assert len(large) > queue_area_bytes()
    found = {}
    threads = [
        threading.Thread(target=take_all, args=(descriptor, rank, 2, found)) for rank in MEMBERS[1:]
    ]
    for thread in threads:
        thread.start()
    leader.put([large])
    leader.put([b"after"])
    for thread in threads:
        thread.join(30.0)
    assert found == {3: [large, b"after"], 4: [large, b"after"]}


def test_a_follower_that_does_not_keep_up_is_named(descriptor):
    segment, leader = open_queue(descriptor, 2, timeout_s=0.1)
    _, quick = open_queue(descriptor, 3)
    for _ in range(NUM_SLOTS):
        leader.put([b"plan"])
        quick.take()
    with pytest.raises(CollectiveTimeout) as caught:
        leader.put([b"plan"])
    assert caught.value.late_ranks == (4,)
    text = str(caught.value)
    assert "group trio: plan exchange 11 timed out after 0.1 s; late ranks: 4" in text
    assert "step 7, kind prefill" in text
    assert segment.aborted_by() == 4
    with pytest.raises(PeerLost, match="rank 4 failed while this rank waited for plan 11"):
        quick.take()


def test_a_full_queue_goes_on_when_a_slot_is_free(descriptor):
    _, leader = open_queue(descriptor, 2)
    followers = [open_queue(descriptor, rank)[1] for rank in MEMBERS[1:]]
    for number in range(NUM_SLOTS):
        leader.put([bytes([number])])
    for follower in followers:
        assert follower.take() == b"\0"
    leader.put([b"last"])
    for follower in followers:
        assert [bytes(follower.take()) for _ in range(NUM_SLOTS)][-1] == b"last"


def test_waiting_ends_when_the_world_is_lost_or_the_leader_leaves(descriptor):
    segment, follower = open_queue(descriptor, 3)
    segment.mark_left(2)
    with pytest.raises(PeerLost, match="rank 2 has ended before plan 1"):
        follower.take()
    segment.abort(5)
    with pytest.raises(PeerLost, match="rank 5 failed while this rank waited for plan 1"):
        follower.take()
