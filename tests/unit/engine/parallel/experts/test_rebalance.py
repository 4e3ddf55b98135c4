"""Placement by the peak of each step: vectors T-R by name, and invariants for any load."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.experts import Placement, imbalance, plan
from engine.parallel.layout import ExpertSlots
from tests.fakes.vectors import vectors

VECTORS = {name: v for name, v in vectors("eplb").items() if "ours" in v["expected"]}


@pytest.mark.parametrize("name", VECTORS)
def test_rebalance_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]["ours"]
    loads = np.array(inputs["loads"], dtype=np.float64)
    logical = loads.shape[1]
    slots = ExpertSlots(
        num_logical=logical, ep=inputs["ranks"], min_redundant=inputs["slots"] - logical
    )

    placement = plan(loads, slots)

    assert placement.num_physical == inputs["slots"]
    assert placement.counts.tolist() == expected["replica_counts"]
    assert (placement.num_avoidable_doubles() > 0) is expected["avoidable_double_on_a_rank"]
    ranks = placement.rank_loads(loads)
    assert (ranks.max(-1) <= np.array(expected["peak_per_step"]) + 1e-9).all()
    if "rank_experts" in expected:
        held = [sorted(placement.local_experts(rank)) for rank in range(inputs["ranks"])]
        assert held == expected["rank_experts"]
        np.testing.assert_allclose(ranks.T, expected["rank_loads_per_step"])


@st.composite
def cases(draw):
    slots = ExpertSlots(
        num_logical=draw(st.integers(1, 20)),
        ep=draw(st.integers(1, 6)),
        min_redundant=draw(st.integers(0, 12)),
    )
    seed, steps = draw(st.integers(0, 9999)), draw(st.integers(1, 5))
    generator = np.random.default_rng(seed)
    loads = generator.integers(0, 30, (steps, slots.num_logical))
    loads[:, generator.random(slots.num_logical) < 0.4] *= draw(st.sampled_from([0, 1, 40]))
    return loads, slots


@given(case=cases())
def test_any_load_gives_a_whole_map_without_avoidable_doubles(case):
    loads, slots = case
    placement = plan(loads, slots)  # the constructor checks that every expert has a slot
    assert placement.slots_per_rank == slots.slots_per_rank
    assert placement.counts.sum() == slots.num_physical
    assert placement.num_avoidable_doubles() == 0
    if (placement.counts > slots.ep).any():
        assert (placement.counts >= slots.ep).all()
    assert plan(loads, slots) == placement


PUBLIC = {
    name: v
    for name, v in vectors("eplb").items()
    if name.startswith("T-EP") and isinstance(v["inputs"]["loads"], list)
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_vector_without_doubles(name):
    """The loads of the public vectors: no avoidable double, and no worse than the public map."""
    inputs, expected = PUBLIC[name]["inputs"], PUBLIC[name]["expected"]
    loads = np.array([inputs["loads"]], dtype=np.float64)
    logical = loads.shape[1]
    slots = ExpertSlots(
        num_logical=logical, ep=inputs["gpus"], min_redundant=inputs["replicas"] - logical
    )
    # Like the public algorithm: groups that do not divide among the nodes fall back to one node.
    num_nodes = inputs["nodes"] if inputs["groups"] % inputs["nodes"] == 0 else 1
    placement = plan(loads, slots, num_nodes=num_nodes, num_groups=inputs["groups"])
    assert placement.num_avoidable_doubles() == 0
    per_node = inputs["gpus"] // num_nodes
    size = logical // inputs["groups"]
    for group in range(inputs["groups"] if num_nodes > 1 else 0):
        experts = range(group * size, (group + 1) * size)
        slots_of = placement.logical_to_physical[list(experts)]
        ranks = slots_of[slots_of >= 0] // placement.slots_per_rank
        assert len(set((ranks // per_node).tolist())) == 1
    for rank in range(inputs["gpus"]):
        held = placement.local_experts(rank)
        assert len(set(held)) == len(held)
    assert imbalance(loads, placement) <= expected["max_over_mean"] * 1.02


def test_nodes_that_do_not_divide_are_refused():
    slots = ExpertSlots(num_logical=12, ep=8)
    with pytest.raises(ValueError, match="3 nodes must divide ep 8"):
        plan(np.ones((1, 12)), slots, num_nodes=3)
    with pytest.raises(ValueError, match="5 groups the 12 experts"):
        plan(np.ones((1, 12)), slots, num_groups=5)


def test_a_skewed_load_is_balanced():
    loads = 1000000 // (1 + 37 * np.arange(384) % 384)
    slots = ExpertSlots(num_logical=384, ep=64, min_redundant=1)
    before = imbalance(loads[None], Placement.initial(slots))
    after = imbalance(loads[None], plan(loads[None], slots))
    assert before > 5
    assert after < 1.02


def test_steps_are_told_apart():
    # Average loads are equal; only a look at single steps shows that 0 and 1 must be apart.
    loads = np.array([[10, 10, 0, 0], [0, 0, 10, 10]])
    placement = plan(loads, ExpertSlots(num_logical=4, ep=2))
    assert placement.rank_loads(loads.astype(float)).max(-1).tolist() == [10, 10]


def test_no_load_at_all_is_legal():
    placement = plan(np.zeros((3, 5)), ExpertSlots(num_logical=5, ep=2, min_redundant=1))
    assert sorted(set(placement.physical_to_logical.tolist())) == [0, 1, 2, 3, 4]


def test_loads_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"loads are \[2, 3\], wanted \[steps, 4\]"):
        plan(np.ones((2, 3)), ExpertSlots(num_logical=4, ep=2))
