"""Placement of logical experts on the slots of ranks."""

import pytest
import torch

from engine.model.experts import ExpertPlacement
from engine.parallel.experts import Placement


@pytest.mark.parametrize("num_logical", [1, 2, 8, 16, 17, 384])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 16])
def test_every_expert_has_the_slot_that_rows_are_sent_to(num_logical: int, num_ranks: int) -> None:
    placement = ExpertPlacement(num_logical=num_logical, num_ranks=num_ranks)
    held = [placement.local_experts(rank) for rank in range(num_ranks)]
    assert {len(experts) for experts in held} == {placement.slots_per_rank}
    by_slot = [expert for experts in held for expert in experts]
    assert len(by_slot) == placement.num_physical
    assert placement.num_physical - num_logical < num_ranks
    logical = torch.arange(num_logical)
    slots = placement.slots(logical[:, None], num_ranks - 1).flatten()
    assert [by_slot[slot] for slot in slots.tolist()] == logical.tolist()


def test_no_expert_stays_no_expert() -> None:
    placement = ExpertPlacement(num_logical=4, num_ranks=2)
    assert placement.slots(torch.tensor([[-1, 3]])).tolist() == [[-1, 3]]


def test_redundant_slots_take_rows_of_their_expert() -> None:
    placement = ExpertPlacement(num_logical=4, num_ranks=2, min_redundant=3)
    assert placement.num_physical == 8
    assert placement.local_experts(1) == [0, 1, 2, 3]
    served = placement.slots(torch.zeros(40, 1, dtype=torch.int64), ep_rank=1).flatten()
    assert set(served.tolist()) == {0, 4}
    other = placement.slots(torch.zeros(40, 1, dtype=torch.int64), ep_rank=0).flatten()
    assert (served != other).all()


def test_a_given_map_is_used() -> None:
    placement = ExpertPlacement(
        num_logical=2, num_ranks=2, placement=Placement([1, 0], num_logical=2, ep=2)
    )
    assert placement.local_experts(0) == [1]
    assert placement.slots(torch.tensor([[0, 1]])).tolist() == [[1, 0]]


def test_two_ranks_share_sixteen_experts() -> None:
    placement = ExpertPlacement(num_logical=16, num_ranks=2)
    assert placement.local_experts(1) == list(range(8, 16))
