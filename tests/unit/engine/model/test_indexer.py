"""The indexer's choice against scores written down position by position."""

import functools

import pytest
import torch

from engine.model.indexer import Indexer
from tests.fakes.models import GOLDEN
from tests.fakes.naive_v4 import NaiveV4
from tests.fakes.steps import Bench
from tests.fakes.tensors import distance, normal

HCA8 = GOLDEN / "v4_hca8"
LAYER = 1


@functools.cache
def naive() -> NaiveV4:
    return NaiveV4(HCA8)


def run(x: torch.Tensor, chunk: int, *, quantisers: bool = False) -> tuple[list[list[int]], Bench]:
    """The entries each position attends to, and the bench with the index keys."""
    bench = Bench(HCA8)
    layer = bench.config.layers[LAYER]
    indexer = Indexer(
        bench.weights,
        f"layers.{LAYER}.attn.indexer",
        bench.config,
        layer,
        bench.ops,
        quantisers=quantisers,
    )
    qr = naive().query_latent(x.double(), LAYER).float()
    projected = bench.ops.linear(x, indexer.projection)
    part = bench.part_of(LAYER)
    pages = bench.table(len(x))
    per_page = bench.layout.block_tokens // 4
    chosen: list[list[int]] = []
    for step in bench.parts([5] * len(x), chunk):
        inputs, shared = step.inputs, step.inputs.ratios[4]
        raw, weights = step.rows(projected).tensor_split([indexer.compressor.columns], 1)
        indexer.store(raw, inputs, shared, bench.pool, part)
        selection = indexer.select(step.rows(qr), weights, inputs, shared, bench.pool, part)
        for row in range(step.end - step.begin):
            if selection is None:
                chosen.append([])
                continue
            places = selection.entry_rows[row][selection.mask[row] == 0.0].tolist()
            split = [divmod(place, bench.layout.entry_rows) for place in places]
            chosen.append([pages.index(page) * per_page + place for page, place in split])
    return chosen, bench


def test_few_entries_are_all_selected() -> None:
    chosen, _ = run(normal(35, 64), 512)
    assert chosen == [list(range((p + 1) // 4)) for p in range(35)]


@pytest.mark.parametrize("chunk", [512, 40])
def test_many_entries_are_the_best(chunk: int) -> None:
    x = normal(90, 64)
    expected = naive().selected(x.double(), LAYER)
    assert max(map(len, expected)) == 8 < 90 // 4
    chosen, bench = run(x, chunk)
    assert chosen == expected
    keys = naive().entries(x.double(), f"layers.{LAYER}.attn.indexer.compressor", 4, 16)
    assert distance(bench.entries(LAYER, 90, index=True), keys) < 1e-4


@pytest.mark.parametrize("quantisers", [False, True])
def test_choices_do_not_depend_on_how_rows_are_cut(quantisers: bool) -> None:
    x = normal(60, 64, seed=3)
    whole, _ = run(x, 512, quantisers=quantisers)
    for chunk in (1, 7):
        assert run(x, chunk, quantisers=quantisers)[0] == whole


def test_quantised_keys_lie_on_the_grid() -> None:
    _, bench = run(normal(60, 64), 512, quantisers=True)
    keys = bench.entries(LAYER, 60, index=True)
    assert keys.any()
    assert torch.equal(bench.ops.quantize_dequantize(keys, "fp4_32"), keys)
