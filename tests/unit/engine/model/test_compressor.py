"""Compressors against the formula written down position by position, however the rows are cut."""

import functools

import pytest
import torch

from engine.model.compressor import Compressor
from engine.model.quant import KvQuantiser
from tests.fakes.models import GOLDEN
from tests.fakes.naive_v4 import NaiveV4
from tests.fakes.steps import Bench
from tests.fakes.tensors import distance, normal

HCA8 = GOLDEN / "v4_hca8"
CASES = {
    "csa": ("layers.1.attn.compressor", 1, 4, 32),
    "index": ("layers.1.attn.indexer.compressor", 1, 4, 16),
    "hca": ("layers.2.attn.compressor", 2, 8, 32),
}


@functools.cache
def naive() -> NaiveV4:
    return NaiveV4(HCA8)


def run(name: str, x: torch.Tensor, chunk: int) -> torch.Tensor:
    """The entries in the pages after all rows went through the compressor."""
    prefix, layer, ratio, width = CASES[name]
    bench = Bench(HCA8)
    compressor = Compressor(
        bench.weights,
        prefix,
        bench.config,
        bench.ops,
        KvQuantiser(bench.config, bench.ops, enabled=False),
        width=width,
        ratio=ratio,
        overlap=ratio == 4,
    )
    raw = bench.ops.linear(x, compressor.projection)
    assert raw.shape[1] == compressor.columns
    pool, part = bench.pool, bench.part_of(layer)
    if name == "index":
        ring, target, page_rows = pool.index_rings[layer], pool.index_rows, bench.layout.index_rows
        first = pool.index_pages_at + (part.index_row or 0)
    else:
        ring, target, page_rows = pool.rings[layer], pool.rows, bench.layout.entry_rows
        first = pool.pages_at + part.entry_row
    for step in bench.parts([5] * len(x), chunk):
        shared = step.inputs.ratios[ratio]
        rows = shared.entry_pages * page_rows + shared.entry_places + first
        compressor.step(step.rows(raw), ring, step.inputs, shared, target, rows)
    return bench.entries(layer, len(x), index=name == "index")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [3, 4, 8, 41])
def test_entries_are_the_formula(name: str, count: int) -> None:
    prefix, _, ratio, width = CASES[name]
    x = normal(count, 64)
    expected = naive().entries(x.double(), prefix, ratio, width)
    assert distance(run(name, x, 512), expected) < 1e-4


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 8, 16])
def test_entries_do_not_depend_on_how_rows_are_cut(name: str, chunk: int) -> None:
    x = normal(41, 64)
    assert torch.equal(run(name, x, chunk), run(name, x, 512))


def test_an_entry_depends_on_the_group_before_it_but_on_no_other() -> None:
    x = normal(16, 64)
    other = x.clone()
    other[:4] += 1.0
    changed = (run("csa", x, 512) != run("csa", other, 512)).any(1)
    assert changed.tolist() == [True, True, False, False]
    changed = (run("hca", x, 512) != run("hca", other, 512)).any(1)
    assert changed.tolist() == [True, False]
