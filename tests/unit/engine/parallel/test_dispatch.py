"""The order of rows, the checks, and the one-rank form."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.dispatch import (
    DispatchShape,
    DispatchTurns,
    LocalDispatcher,
    check_ids,
    order_local,
)
from engine.parallel.errors import DispatchInputError


@given(
    ids=st.lists(st.integers(-1, 11), max_size=60),
    first_slot=st.integers(0, 11),
    num_slots=st.integers(1, 12),
)
def test_entries_are_ordered_by_slot_and_then_by_place(ids, first_slot, num_slots):
    found, slots = order_local(np.array(ids, np.int32), first_slot, num_slots)
    expected = sorted(
        (slot - first_slot, place)
        for place, slot in enumerate(ids)
        if first_slot <= slot < first_slot + num_slots
    )
    assert list(zip(slots.tolist(), found.tolist(), strict=True)) == expected


def test_slot_numbers_near_the_bound_keep_their_order():
    ids = np.array([65535, 3, 65534, 65535, 0], np.int32)
    found, slots = order_local(ids, 0, 65536)
    assert slots.tolist() == [0, 3, 65534, 65535, 65535]
    assert found.tolist() == [4, 1, 2, 0, 3]


def test_holes_are_found_only_where_there_are_some():
    assert check_ids(np.array([[0, 3], [1, 2]]), 4) is None
    assert check_ids(np.empty((0, 2), np.int64), 4) is None
    holes = check_ids(np.array([[0, -1], [-1, 2]]), 4)
    assert holes.tolist() == [[False, True], [True, False]]


def test_one_rank_dispatches_and_combines():
    dispatcher = LocalDispatcher(DispatchShape(hidden=2, top_k=2, max_tokens=4))
    rows = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    ids = torch.tensor([[1, 0], [0, -1], [2, 1]])
    weights = torch.tensor([[0.5, 0.25], [1.0, 9.0], [0.75, 0.125]])

    dispatched = dispatcher.dispatch(rows, ids, weights, 3)

    assert dispatched.local_slots.tolist() == [0, 0, 1, 1, 2]
    assert dispatched.rows[:, 0].tolist() == [1.0, 2.0, 1.0, 3.0, 3.0]
    assert dispatched.row_weights.tolist() == [0.25, 1.0, 0.5, 0.125, 0.75]
    combined = dispatcher.combine(dispatched.rows + 0.5, dispatched.handle)
    assert combined[:, :, 0].tolist() == [[1.5, 1.5], [2.5, 0.0], [3.5, 3.5]]
    assert (dispatcher.rank, dispatcher.num_ranks) == (0, 1)


def test_tensors_handed_out_are_contiguous():
    dispatcher = LocalDispatcher(DispatchShape(hidden=4, top_k=1, max_tokens=8))
    rows = torch.arange(24.0).reshape(4, 6).t()
    assert not rows.is_contiguous()
    dispatched = dispatcher.dispatch(
        rows, torch.zeros(6, 1, dtype=torch.int64), torch.ones(6, 1), 1
    )
    assert torch.equal(dispatched.rows, rows)
    assert dispatched.rows.is_contiguous()
    assert dispatcher.combine(dispatched.rows, dispatched.handle).is_contiguous()


def test_turns_are_dispatch_combine_dispatch():
    turns = DispatchTurns()
    turns.check_dispatch()
    assert turns.open() == 1
    with pytest.raises(DispatchInputError, match="dispatch 1 was not combined"):
        turns.check_dispatch()
    turns.close()
    turns.check_dispatch()
    assert turns.open() == 2


@pytest.mark.parametrize("name", ["hidden", "top_k", "max_tokens"])
def test_sizes_below_one_are_refused(name):
    sizes = {"hidden": 2, "top_k": 2, "max_tokens": 2, name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0, must be at least 1"):
        DispatchShape(**sizes)
