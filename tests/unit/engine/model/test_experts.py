"""Placement of logical experts on the slots of ranks."""

import pytest
import torch

from engine.model.experts import ExpertPlacement, ExpertShare, RoutedExperts
from engine.model.weights import Share
from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.experts import Placement
from engine.parallel.rank_groups import LoneGroup, RankGroups
from engine.parallel.rows.modes import Path
from tests.fakes.models import GOLDEN
from tests.fakes.steps import Bench
from tests.fakes.tensors import distance, normal

HCA8 = GOLDEN / "v4_hca8"
PREFIX = "layers.2.ffn.experts"
DISPATCHER = LocalDispatcher(DispatchShape(hidden=64, top_k=2, max_tokens=64))
CHOICES = torch.tensor([[0, 7], [3, 4], [-1, 2], [1, 5], [6, -1]])


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


def in_domain(rank: int, size: int, moe_ep: int) -> RankGroups:
    domain, attn_tp = LoneGroup("domain"), LoneGroup("attn_tp")
    domain.rank, domain.size = rank, size
    return RankGroups(attn_tp=attn_tp, domain=domain, path=Path.A, moe_ep=moe_ep)


def routed(share: ExpertShare, min_redundant: int = 0) -> RoutedExperts:
    bench = Bench(HCA8)
    placement = ExpertPlacement(
        num_logical=8, num_ranks=share.num_ranks, min_redundant=min_redundant
    )
    return RoutedExperts(
        bench.weights, PREFIX, bench.config, share, placement, DISPATCHER, bench.ops, 4
    )


def test_a_domain_is_cut_into_experts_outside_and_inner_width_inside() -> None:
    shares = [ExpertShare.of(in_domain(rank, 8, 4), DISPATCHER) for rank in range(8)]
    assert [(share.rank, share.inner.rank) for share in shares] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1),
    ]  # fmt: skip
    assert {(share.num_ranks, share.inner.size) for share in shares} == {(4, 2)}
    assert not any(share.is_dispatched for share in shares)


def test_with_dispatch_the_share_is_that_of_the_dispatcher() -> None:
    assert ExpertShare.of(RankGroups(), DISPATCHER) == ExpertShare(
        rank=0, num_ranks=1, inner=Share(), is_dispatched=True
    )


@pytest.mark.parametrize(("size", "moe_ep"), [(2, 1), (2, 2), (4, 2), (8, 8), (4, 1)])
@pytest.mark.parametrize("min_redundant", [0, 3])
def test_the_parts_of_all_ranks_add_up_to_the_results(
    size: int, moe_ep: int, min_redundant: int
) -> None:
    x, weights = normal(len(CHOICES), 64), normal(len(CHOICES), 2).abs()
    expected = routed(ExpertShare(rank=0, num_ranks=1))(x, CHOICES, weights)
    parts = [
        routed(ExpertShare.of(in_domain(rank, size, moe_ep), DISPATCHER), min_redundant)(
            x, CHOICES, weights
        )
        for rank in range(size)
    ]
    assert distance(torch.stack(parts).sum(0), expected) < 1e-5
    if moe_ep == size:
        # Whole experts: every result comes from one rank, bit by bit.
        assert torch.equal(torch.stack(parts).sum(0), expected)
    assert not torch.equal(parts[0], expected)


def test_a_placement_for_other_ranks_is_refused() -> None:
    experts = routed(ExpertShare(rank=0, num_ranks=1))
    with pytest.raises(ValueError, match="placement is for 2 ranks, but 1 share the experts"):
        experts.adopt(ExpertPlacement(num_logical=8, num_ranks=2))


def test_a_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="3 ranks cannot share 32 channels evenly"):
        routed(ExpertShare.of(in_domain(0, 3, 1), DISPATCHER))
