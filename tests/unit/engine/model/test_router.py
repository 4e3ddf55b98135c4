"""Choices of experts by token and by score."""

import torch

from engine.model.router import Router, load_gate
from tests.fakes.checkpoints import tensors_of
from tests.fakes.models import GOLDEN
from tests.fakes.steps import Bench
from tests.fakes.tensors import normal

HCA8 = GOLDEN / "v4_hca8"


def choose(layer: int, x: torch.Tensor, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    bench = Bench(HCA8)
    prefix = f"layers.{layer}.ffn"
    router = Router(bench.weights, prefix, bench.config, bench.config.layers[layer], bench.ops)
    scores = bench.ops.linear(x, load_gate(bench.weights, prefix, bench.config))
    return router.choose(scores, torch.tensor(token_ids))


def test_hash_layers_choose_by_token() -> None:
    table = tensors_of(HCA8)["layers.0.ffn.gate.tid2eid"]
    tokens = [(7 * i + 3) % 256 for i in range(8)]
    ids, _ = choose(0, normal(8, 64), tokens)
    assert ids.tolist() == [sorted(table[token].tolist()) for token in tokens]


def test_other_layers_choose_by_score_and_weigh_to_the_scale() -> None:
    ids, weights = choose(2, normal(8, 64), [0] * 8)
    scale = Bench(HCA8).config.routed_scaling_factor
    assert (ids[:, 0] < ids[:, 1]).all()
    assert len({tuple(row) for row in ids.tolist()}) > 1
    torch.testing.assert_close(weights.sum(1), torch.full((8,), scale))
