"""The row group in shared memory, on ranks that are threads."""

import os
import threading

import pytest
import torch

from engine.parallel.errors import CollectiveTimeout, PeerLost
from engine.parallel.exchange import Exchange
from engine.parallel.rows.budget import MAX_IN_FLIGHT
from engine.parallel.rows.shm_group import SLOT_BYTES, SharedMemoryRowGroup, row_area_bytes
from engine.parallel.shared_memory import Progress, Segment, create_segment


@pytest.fixture
def descriptor():
    descriptor = create_segment()
    yield descriptor
    os.close(descriptor)


def open_group(descriptor, rank, size, timeout_s=20.0):
    segment = Segment(descriptor, size)
    exchange = Exchange(
        segment,
        "sequence",
        rank=rank,
        group="trio cp/sequence",
        timeout_s=timeout_s,
        start_timeout_s=20.0,
        progress=Progress(step=3, step_kind="prefill"),
    )
    memory = segment.map_body(row_area_bytes(size))
    return segment, SharedMemoryRowGroup("cp", exchange, memory)


def run_ranks(descriptor, size, work, **options):
    """Runs work(rank, group) in a thread per rank; returns results, or raises."""
    results, errors = [None] * size, []

    def serve(rank):
        try:
            _, group = open_group(descriptor, rank, size, **options)
            results[rank] = work(rank, group)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return results


def rows_of(rank, count, width=3, dtype=torch.float32):
    return (torch.arange(count * width) + 100 * rank).reshape(count, width).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool]
)
def test_gathered_rows_are_those_of_all_members(descriptor, dtype):
    results = run_ranks(
        descriptor, 3, lambda rank, group: group.all_gather(rows_of(rank, 2, dtype=dtype))
    )
    expected = torch.cat([rows_of(rank, 2, dtype=dtype) for rank in range(3)])
    assert all(torch.equal(result, expected) for result in results)
    assert all(result.dtype is dtype for result in results)


def test_sums_run_in_rank_order(descriptor):
    values = [torch.tensor([[1e8, 1.0]]), torch.tensor([[1.0, 1e8]]), torch.tensor([[-1e8, -1e8]])]
    results = run_ranks(descriptor, 3, lambda rank, group: group.all_reduce(values[rank]))
    expected = values[0] + values[1] + values[2]
    assert all(torch.equal(result, expected) for result in results)


def test_parts_of_a_sum_have_any_size(descriptor):
    sizes = [3, 0, 2]
    results = run_ranks(
        descriptor, 3, lambda rank, group: group.reduce_scatter(rows_of(rank, 5), sizes)
    )
    total = sum(rows_of(rank, 5) for rank in range(3))
    for result, expected in zip(results, total.split(sizes), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("sizes", [(2, 0, 3), (0, 0, 0), (0, 1, 0), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_members_may_bring_as_many_rows_as_was_agreed(descriptor, sizes, dtype):
    def work(rank, group):
        first = group.all_gather_sized(rows_of(rank, sizes[rank], dtype=dtype), sizes)
        # What is sent may be used again, and the next gather stands in other slots.
        again = group.all_gather_sized(rows_of(rank, sizes[rank], dtype=dtype), sizes)
        assert torch.equal(first, again)
        return first

    expected = torch.cat([rows_of(rank, size, dtype=dtype) for rank, size in enumerate(sizes)])
    for found in run_ranks(descriptor, 3, work):
        assert torch.equal(found, expected)


def test_another_number_of_rows_than_was_agreed_is_refused(descriptor):
    _, group = open_group(descriptor, 0, 1)
    with pytest.raises(ValueError, match=r"2 rows are not the 3 of member 0 in \[3\]"):
        group.all_gather_sized(torch.zeros(2, 1), [3])


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,), (2,), (1, 2, 3)])
def test_any_shape_and_nothing_at_all(descriptor, shape):
    def work(rank, group):
        rows = torch.full(shape, float(rank))
        parts = [shape[0], 0]
        return group.all_gather(rows), group.all_reduce(rows), group.reduce_scatter(rows, parts)

    for rank, (gathered, summed, part) in enumerate(run_ranks(descriptor, 2, work)):
        assert gathered.shape == (2 * shape[0], *shape[1:])
        assert summed.shape == shape
        assert (summed == 1.0).all()
        assert len(part) == (shape[0] if rank == 0 else 0)


@pytest.mark.medium
def test_rows_larger_than_a_slot_travel_in_pieces(descriptor):
    """More pieces than may be in flight, ending inside a slot."""
    count = (MAX_IN_FLIGHT + 2) * SLOT_BYTES // 16 + 5
    sizes = [count // 3, count - count // 3]

    def work(rank, group):
        rows = rows_of(rank, count, 4)
        found = group.all_gather(rows), group.all_reduce(rows), group.reduce_scatter(rows, sizes)
        return *found, group.all_gather_sized(rows[: sizes[rank]], sizes)

    results = run_ranks(descriptor, 2, work)
    both = [rows_of(rank, count, 4) for rank in range(2)]
    for rank, (gathered, summed, part, sized) in enumerate(results):
        # One member has three pieces less than the other.
        assert torch.equal(sized, torch.cat([both[0][: sizes[0]], both[1][: sizes[1]]]))
        assert torch.equal(gathered, torch.cat(both))
        assert torch.equal(summed, both[0] + both[1])
        assert torch.equal(part, (both[0] + both[1]).split(sizes)[rank])


def test_gathers_issued_early_may_be_awaited_late_and_in_any_order(descriptor):
    number = 3 * MAX_IN_FLIGHT

    def work(rank, group):
        issued = []
        for step in range(number):
            rows = torch.full((1, 2), float(10 * step + rank))
            issued.append(group.start_all_gather(rows))
            # The rows may be used again at once.
            rows.fill_(-1.0)
        total = group.all_reduce(torch.ones(1))
        order = range(number) if rank else reversed(range(number))
        return {step: issued[step].wait() for step in order}, total

    for found, total in run_ranks(descriptor, 2, work):
        assert total.tolist() == [2.0]
        for step in range(number):
            assert found[step].tolist() == [[10.0 * step] * 2, [10.0 * step + 1] * 2]


def test_an_early_gather_does_not_wait_for_its_peers(descriptor):
    """One rank issues and goes on before the other has come at all."""
    issued = threading.Event()

    def work(rank, group):
        if rank == 0:
            gather = group.start_all_gather(torch.zeros(1, 1))
            issued.set()
            return gather.wait()
        assert issued.wait(20.0)
        return group.all_gather(torch.ones(1, 1))

    results = run_ranks(descriptor, 2, work)
    assert [result.flatten().tolist() for result in results] == [[0.0, 1.0]] * 2


def test_sizes_that_are_not_the_rows_are_refused(descriptor):
    _, group = open_group(descriptor, 0, 1)
    with pytest.raises(ValueError, match=r"2 rows do not split into \[3\] for 1"):
        group.reduce_scatter(torch.zeros(2, 1), [3])


def test_a_late_member_is_named_with_step_and_kind(descriptor):
    errors = {}
    given_up = threading.Event()

    def work(rank, group):
        if rank == 2:
            given_up.wait(20.0)
            return
        try:
            group.all_reduce(torch.zeros(1))
        except (CollectiveTimeout, PeerLost) as error:
            errors[rank] = str(error)
            given_up.set()

    run_ranks(descriptor, 3, work, timeout_s=0.2)
    assert sorted(errors) == [0, 1]
    timeouts = [text for text in errors.values() if "timed out" in text]
    assert timeouts
    assert "all_reduce exchange 2 timed out after 0.2 s; late ranks: 2" in timeouts[0]
    assert "group trio cp/sequence" in timeouts[0]
    assert "step 3, kind prefill" in timeouts[0]
