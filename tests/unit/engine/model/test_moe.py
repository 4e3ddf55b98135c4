"""Router, experts and shared expert of a layer against loops; padding rows."""

import functools

import pytest
import torch

from engine.model.expert_rows import ExpertRows, expert_rows
from engine.model.experts import ExpertPlacement
from engine.model.moe import MIN_EXPERT_ROWS, MixtureOfExperts
from engine.parallel.ports import RankContext, open_ports
from engine.parallel.rank_groups import RankGroups
from tests.fakes.models import GOLDEN
from tests.fakes.naive_v4 import NaiveV4
from tests.fakes.steps import Bench, Part
from tests.fakes.tensors import distance, normal

HCA8 = GOLDEN / "v4_hca8"
TOKENS = [(11 * i) % 256 for i in range(21)]
LAYERS = {"hash": 0, "score": 2}


@functools.cache
def naive() -> NaiveV4:
    return NaiveV4(HCA8)


def module(bench: Bench, layer: int, min_rows: int = MIN_EXPERT_ROWS) -> MixtureOfExperts:
    ports = open_ports(RankContext(), hidden=64, top_k=2, max_tokens=64)
    return MixtureOfExperts(
        bench.weights,
        f"layers.{layer}.ffn",
        bench.config,
        bench.config.layers[layer],
        ExpertPlacement(num_logical=8, num_ranks=1),
        ports.dispatcher,
        bench.ops,
        min_rows=min_rows,
    )


def rows_of(step: Part) -> ExpertRows:
    inputs = step.inputs
    return expert_rows(inputs.token_ids, inputs.num_tokens, RankGroups(), None, row_multiple=8)


def run(layer: int, x: torch.Tensor, tokens: list[int], chunk: int) -> torch.Tensor:
    bench = Bench(HCA8)
    experts = module(bench, layer)
    found = []
    for step in bench.parts(tokens, chunk):
        out = experts(step.rows(x), rows_of(step))
        assert out.shape == (step.inputs.num_rows, 64)
        found.append(out[: step.end - step.begin])
    return torch.cat(found)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_layer_is_a_loop_over_choices(kind: str) -> None:
    layer, x = LAYERS[kind], normal(len(TOKENS), 64)
    expected = naive().experts(x.double(), TOKENS, layer)
    assert distance(run(layer, x, TOKENS, 64), expected) < 1e-4


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_a_row_does_not_depend_on_its_neighbours(kind: str, chunk: int) -> None:
    layer, x = LAYERS[kind], normal(len(TOKENS), 64)
    assert torch.equal(run(layer, x, TOKENS, chunk), run(layer, x, TOKENS, 64))


def test_hash_layers_route_by_token_and_the_others_do_not() -> None:
    x, other = normal(len(TOKENS), 64), [(7 * i + 3) % 256 for i in range(21)]
    assert not torch.equal(run(0, x, TOKENS, 64), run(0, x, other, 64))
    assert torch.equal(run(2, x, TOKENS, 64), run(2, x, other, 64))


def test_padding_rows_reach_the_shared_expert_alone() -> None:
    bench = Bench(HCA8)
    step = next(bench.parts([5, 6, 7], 8))
    x = normal(8, 64)
    found = module(bench, 2)(x, rows_of(step))
    shared = naive().expert(x[3:].double(), "layers.2.ffn.shared_experts")
    assert distance(found[3:], shared) < 1e-4


def test_a_wider_minimum_of_rows_changes_no_bit() -> None:
    x = normal(8, 64)
    bench = Bench(HCA8)
    step = next(bench.parts(TOKENS[:8], 8))
    few, many = module(bench, 2), module(bench, 2, min_rows=16)
    assert torch.equal(few(x, rows_of(step)), many(x, rows_of(step)))
