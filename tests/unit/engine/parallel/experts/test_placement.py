"""Maps of a layer: vector T-P1, the gate's choice of replica (T-G1), and invariants."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.errors import LayoutError
from engine.parallel.experts import Placement
from engine.parallel.layout import ExpertSlots
from tests.fakes.vectors import vectors


@pytest.mark.parametrize("name", ["T-P1"])
def test_initial_map_vector(name):
    expected = vectors("eplb")[name]["expected"]
    placement = Placement.initial(ExpertSlots(num_logical=384, ep=64, min_redundant=1))
    assert placement.physical_to_logical.tolist() == expected["physical_to_logical"]
    assert placement.slots_per_rank == expected["local"]
    places = {
        expert: [divmod(slot, 7) for slot in placement.logical_to_physical[expert] if slot >= 0]
        for expert in (0, 1, 54, 63, 64, 383)
    }
    assert places == {
        0: [(0, 0), (54, 6)],
        1: [(0, 1), (55, 0)],
        54: [(7, 5), (62, 4)],
        63: [(9, 0), (63, 6)],
        64: [(9, 1)],
        383: [(54, 5)],
    }
    assert placement.counts.tolist() == [2] * 64 + [1] * 320


def test_replica_choice_of_the_gate_vector_t_g1():
    vector = vectors("gate")["T-G1"]
    inputs, expected = vector["inputs"], vector["expected"]
    placement = Placement([0, 1, 2, 3, 4, 5, 0, 2], num_logical=6, ep=1)
    assert placement.logical_to_physical.tolist() == inputs["map"]
    assert placement.counts.tolist() == inputs["count"]
    found = placement.slots(np.array(expected["logical"]), inputs["ep_rank"])
    assert found.tolist() == expected["physical"]


@given(
    logical=st.integers(1, 40),
    ep=st.integers(1, 8),
    redundant=st.integers(0, 20),
    rank=st.integers(0, 7),
    row=st.integers(0, 1000),
    seed=st.integers(0, 99),
)
def test_a_row_goes_to_a_slot_of_its_expert(logical, ep, redundant, rank, row, seed):
    placement = Placement.initial(ExpertSlots(num_logical=logical, ep=ep, min_redundant=redundant))
    ids = np.random.default_rng(seed).integers(-1, logical, (12, 3))
    slots = placement.slots(ids, rank, row)
    assert ((slots < 0) == (ids < 0)).all()
    held = placement.physical_to_logical[slots]
    assert (held[ids >= 0] == ids[ids >= 0]).all()
    for number in range(12):
        later = placement.slots(ids[number:], rank, row + number)
        np.testing.assert_array_equal(later, slots[number:])


def test_replicas_share_the_rows():
    placement = Placement([0, 1, 0, 0], num_logical=2, ep=2)
    slots = placement.slots(np.zeros((300, 1), dtype=np.int64), 0)
    # Rows alternate over the three replicas: 23333 is not a multiple of 3.
    assert np.bincount(slots.ravel(), minlength=4).tolist() == [100, 0, 100, 100]


@given(logical=st.integers(1, 12), ep=st.integers(1, 5), seed=st.integers(0, 999))
def test_both_maps_are_inverse_and_loads_are_kept(logical, ep, seed):
    generator = np.random.default_rng(seed)
    local = -(-logical // ep) + 2
    slots = np.concatenate(
        [np.arange(logical), generator.integers(0, logical, local * ep - logical)]
    )
    placement = Placement(generator.permutation(slots), num_logical=logical, ep=ep)
    for expert, row in enumerate(placement.logical_to_physical):
        found = row[row >= 0]
        assert len(found) == placement.counts[expert]
        assert (placement.physical_to_logical[found] == expert).all()
    assert placement.counts.sum() == placement.num_physical
    held = [placement.local_experts(rank) for rank in range(ep)]
    assert [e for experts in held for e in experts] == placement.physical_to_logical.tolist()
    loads = generator.integers(0, 50, (3, logical)).astype(np.float64)
    np.testing.assert_allclose(placement.rank_loads(loads).sum(-1), loads.sum(-1))


def test_doubles_are_counted_only_where_avoidable():
    assert Placement([0, 0, 1, 2], num_logical=3, ep=2).num_avoidable_doubles() == 1
    assert Placement([0, 1, 0, 2], num_logical=3, ep=2).num_avoidable_doubles() == 0
    assert Placement([0, 0, 0, 1], num_logical=2, ep=2).num_avoidable_doubles() == 0


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ([0, 1, 2], "3 slots cannot be spread evenly over ep 2"),
        ([0, 1, 2, 4], "0 to 4, the model has 0 to 2"),
        ([0, 1, 1, 0], "expert 2 has no slot"),
    ],
)
def test_a_map_that_cannot_be_is_refused(slots, words):
    with pytest.raises(LayoutError, match=words):
        Placement(slots, num_logical=3, ep=2)


def test_equality_is_that_of_the_map():
    one, same, other = (Placement(m, num_logical=2, ep=1) for m in ([0, 1], [0, 1], [1, 0]))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
