"""Swapping maps: moves that rebuild the new map, and one agreed step for all ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.agreement import STOP_EPOCH
from engine.parallel.experts import Placement, PlacementSwap, plan, transfers
from engine.parallel.experts.swap import FIRST_EPOCH
from engine.parallel.layout import ExpertSlots
from engine.parallel.lockstep import EngineKind, LockstepState, VoteVector


def random_placement(slots, seed):
    loads = np.random.default_rng(seed).integers(0, 50, (2, slots.num_logical))
    return plan(loads, slots)


@given(
    logical=st.integers(1, 16),
    ep=st.integers(1, 5),
    redundant=st.integers(0, 9),
    seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_moves_rebuild_the_new_map(logical, ep, redundant, seeds):
    slots = ExpertSlots(num_logical=logical, ep=ep, min_redundant=redundant)
    old, new = (random_placement(slots, seed) for seed in seeds)
    held = old.physical_to_logical.copy()
    received = set()
    for move in transfers(old, new):
        assert old.physical_to_logical[move.source_slot] == move.expert
        held[move.target_slot] = move.expert
        source, target = (s // old.slots_per_rank for s in (move.source_slot, move.target_slot))
        if source != target:
            received.add((target, move.expert))
            assert move.expert not in old.local_experts(target)
    np.testing.assert_array_equal(held, new.physical_to_logical)
    assert transfers(new, new) == ()


def test_receivers_are_dealt_to_the_holders():
    old = Placement([0, 0, 1, 2, 3, 4], num_logical=5, ep=6)
    new = Placement([1, 2, 0, 0, 3, 4], num_logical=5, ep=6)
    sources = {m.target_slot: m.source_slot for m in transfers(old, new) if m.expert == 0}
    assert sources == {2: 0, 3: 1}


def test_other_slots_are_refused():
    with pytest.raises(ValueError, match="2 slots on 1 ranks cannot become 4 on 1"):
        transfers(
            Placement([0, 1], num_logical=2, ep=1), Placement([0, 1, 0, 1], num_logical=2, ep=1)
        )


def test_all_ranks_swap_before_the_same_step():
    old, new = (Placement(m, num_logical=2, ep=2) for m in ([0, 1], [1, 0]))
    ranks = [PlacementSwap([old]) for _ in range(3)]
    machines = [LockstepState(EngineKind.DECODE) for _ in ranks]
    ready_at = (2, 7, 4)
    swapped = []
    for step in range(12):
        for rank, at in zip(ranks, ready_at, strict=True):
            if step == at:
                rank.prepare([new])
        votes = [
            VoteVector(unfinished=True, decode_rows=1, epoch=rank.requested_epoch).to_array()
            for rank in ranks
        ]
        reduced = np.max(np.stack(votes), axis=0)
        for number, (rank, machine) in enumerate(zip(ranks, machines, strict=True)):
            if rank.before_step(machine.decide(reduced).agreed_epoch):
                swapped.append((step, number))
        assert len({rank.placements for rank in ranks}) == 1
    assert swapped == [(7, 0), (7, 1), (7, 2)]
    assert [rank.steps_since_swap for rank in ranks] == [4, 4, 4]
    assert [rank.num_swaps for rank in ranks] == [1, 1, 1]
    assert [rank.requested_epoch for rank in ranks] == [0, 0, 0]


def test_a_swap_is_no_stop():
    assert FIRST_EPOCH > STOP_EPOCH
    swap = PlacementSwap([Placement([0, 1], num_logical=2, ep=1)])
    assert not swap.before_step(0)
    swap.prepare([Placement([1, 0], num_logical=2, ep=1)])
    assert swap.requested_epoch == FIRST_EPOCH
    assert not swap.before_step(None)
    assert not swap.before_step(STOP_EPOCH)
    assert swap.before_step(FIRST_EPOCH)


def test_one_change_at_a_time():
    placement = Placement([0, 1], num_logical=2, ep=1)
    swap = PlacementSwap([placement])
    with pytest.raises(ValueError, match="2 maps for 1 layers"):
        swap.prepare([placement, placement])
    swap.prepare([placement])
    with pytest.raises(ValueError, match="epoch 2 is not agreed yet"):
        swap.prepare([placement])
