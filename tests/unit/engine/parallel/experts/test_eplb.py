"""The public algorithm: vectors T-EP and T-R2/public by name."""

import hashlib

import numpy as np
import pytest

from engine.parallel.experts import Placement, rebalance_experts
from tests.fakes.vectors import vectors

VECTORS = {n: v for n, v in vectors("eplb").items() if n.startswith("T-EP") or "public" in n}


def loads_of(inputs):
    if isinstance(inputs["loads"], str):
        assert inputs["loads"] == "floor(1000000 / (1 + (37*e mod 384))), e = 0..383"
        return 1000000 // (1 + 37 * np.arange(384) % 384)
    return np.array(inputs["loads"])


@pytest.mark.parametrize("name", VECTORS)
def test_public_vector(name):
    inputs, expected = VECTORS[name]["inputs"], VECTORS[name]["expected"]
    loads = loads_of(inputs)

    found = rebalance_experts(
        loads[None],
        num_replicas=inputs["replicas"],
        num_groups=inputs["groups"],
        num_nodes=inputs["nodes"],
        num_gpus=inputs["gpus"],
    )

    physical, counts = found.physical_to_logical[0], found.counts[0]
    digest = hashlib.sha256(",".join(map(str, physical.tolist())).encode()).hexdigest()[:16]
    assert digest == expected["digest"]
    placement = Placement(physical, num_logical=len(loads), ep=inputs["gpus"])
    ranks = placement.rank_loads(loads.astype(np.float64))
    assert ranks.max() / ranks.mean() == pytest.approx(expected["max_over_mean"], abs=5e-5)
    assert counts.max() == expected["largest_count"]
    held = [placement.local_experts(rank) for rank in range(inputs["gpus"])]
    doubled = sum(len(set(experts)) < len(experts) for experts in held)
    assert doubled == expected["gpus_with_an_expert_twice"]
    if "physical_to_logical" in expected:
        assert physical.tolist() == expected["physical_to_logical"]
        assert found.logical_to_physical[0].tolist() == expected["logical_to_physical"]
        assert counts.tolist() == expected["replica_counts"]
        np.testing.assert_allclose(ranks, expected["gpu_loads"], atol=5e-5)


def test_layers_do_not_meet():
    generator = np.random.default_rng(3)
    loads = generator.integers(0, 1000, (5, 12))
    sizes = {"num_replicas": 16, "num_groups": 4, "num_nodes": 2, "num_gpus": 8}
    together = rebalance_experts(loads, **sizes)
    for layer in range(5):
        alone = rebalance_experts(loads[layer : layer + 1], **sizes)
        np.testing.assert_array_equal(
            alone.physical_to_logical[0], together.physical_to_logical[layer]
        )
        np.testing.assert_array_equal(alone.counts[0], together.counts[layer])


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_replicas": 15}, "slots by ranks: 4 does not divide 15"),
        ({"num_groups": 5}, "experts by groups: 5 does not divide 12"),
        ({"num_groups": 3, "num_nodes": 3}, "ranks by nodes: 3 does not divide 4"),
    ],
)
def test_numbers_that_do_not_divide_are_refused(sizes, words):
    with pytest.raises(ValueError, match=words):
        rebalance_experts(
            np.ones((1, 12)),
            **{"num_replicas": 16, "num_groups": 1, "num_nodes": 1, "num_gpus": 4, **sizes},
        )
