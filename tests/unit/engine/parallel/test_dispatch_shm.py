"""The areas of the shared-memory form; its behaviour is tested by the contract suite."""

import os
import threading

import pytest
import torch

from engine.parallel.dispatch import DispatchShape
from engine.parallel.dispatch_shm import SharedMemoryDispatcher, area_bytes
from engine.parallel.exchange import Exchange
from engine.parallel.shared_memory import Progress, Segment, create_segment

SHAPE = DispatchShape(hidden=4, top_k=2, max_tokens=3)


@pytest.fixture
def descriptor():
    descriptor = create_segment()
    yield descriptor
    os.close(descriptor)


def open_dispatcher(descriptor, rank, num_ranks):
    segment = Segment(descriptor, num_ranks)
    exchange = Exchange(
        segment,
        "experts",
        rank=rank,
        group="group",
        timeout_s=20.0,
        start_timeout_s=20.0,
        progress=Progress(),
    )
    memory = segment.map_body(area_bytes(SHAPE, num_ranks))
    return SharedMemoryDispatcher(memory, exchange, SHAPE)


def test_areas_are_whole_pages_and_grow_with_ranks():
    assert area_bytes(SHAPE, 2) % 4096 == 0
    large = DispatchShape(hidden=128, top_k=2, max_tokens=64)
    one_rank_bytes = 4 * 64 * (2 + 2 + 128 + 2 * 128)
    assert 8 * one_rank_bytes <= area_bytes(large, 8) <= 8 * one_rank_bytes + 5 * 4096


def test_rows_written_before_are_not_seen_again(descriptor):
    """A shorter dispatch after a longer one leaves stale rows in the area, with ids of -1."""
    dispatcher = open_dispatcher(descriptor, 0, 1)
    for num_tokens in (3, 1, 0, 2):
        rows = torch.full((num_tokens, 4), float(num_tokens))
        dispatched = dispatcher.dispatch(
            rows, torch.zeros(num_tokens, 2, dtype=torch.int64), torch.ones(num_tokens, 2), 1
        )
        assert dispatched.rows.shape == (2 * num_tokens, 4)
        assert (dispatched.rows == num_tokens).all()
        combined = dispatcher.combine(dispatched.rows, dispatched.handle)
        assert torch.equal(combined, rows[:, None].expand(num_tokens, 2, 4))


def test_a_long_rank_does_not_shift_the_rows_of_a_short_one(descriptor):
    dispatchers = [open_dispatcher(descriptor, rank, 2) for rank in range(2)]
    results = {}

    def rank_main(rank, num_tokens):
        rows = torch.arange(4.0 * num_tokens).reshape(num_tokens, 4) + 100 * rank
        ids = torch.tensor([[0, 1]] * num_tokens, dtype=torch.int64).reshape(num_tokens, 2)
        for _ in range(20):
            dispatched = dispatchers[rank].dispatch(rows, ids, torch.ones(num_tokens, 2), 1)
            results[rank] = dispatched.rows.tolist()
            combined = dispatchers[rank].combine(dispatched.rows, dispatched.handle)
            assert torch.equal(combined, rows[:, None].expand(num_tokens, 2, 4))

    threads = [threading.Thread(target=rank_main, args=(rank, 1 + rank)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    expected = [[0.0, 1.0, 2.0, 3.0], [100.0, 101.0, 102.0, 103.0], [104.0, 105.0, 106.0, 107.0]]
    assert results == {0: expected, 1: expected}


def test_the_combined_tensor_is_a_view_until_the_next_dispatch(descriptor):
    dispatcher = open_dispatcher(descriptor, 0, 1)
    ids, weights = torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2)
    dispatched = dispatcher.dispatch(torch.ones(1, 4), ids, weights, 1)
    first = dispatcher.combine(dispatched.rows, dispatched.handle)
    dispatched = dispatcher.dispatch(torch.full((1, 4), 2.0), ids, weights, 1)
    dispatcher.combine(dispatched.rows, dispatched.handle)
    assert (first == 2.0).all()
