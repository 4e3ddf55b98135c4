"""One layer's attention of each kind against the formula written down position by position."""

import functools

import pytest
import torch

from engine.model.attention import Attention
from engine.model.layers import StepCarry
from engine.parallel.errors import LayoutError
from engine.parallel.rank_groups import LoneGroup, RankGroups
from engine.parallel.rows.modes import Path
from tests.fakes.models import GOLDEN
from tests.fakes.naive_v4 import NaiveV4
from tests.fakes.steps import Bench
from tests.fakes.tensors import distance, normal

HCA8 = GOLDEN / "v4_hca8"
LAYERS = {"window": 0, "csa": 1, "hca": 2}
COUNT = 50


@functools.cache
def expected(layer: int) -> torch.Tensor:
    return NaiveV4(HCA8).attention(normal(COUNT, 64).double(), layer)


def run(
    layer: int,
    x: torch.Tensor,
    chunk: int,
    *,
    quantisers: bool = False,
    groups: RankGroups | None = None,
) -> tuple[torch.Tensor, Bench]:
    bench = Bench(HCA8)
    attention = Attention(
        bench.weights,
        f"layers.{layer}.attn",
        bench.config,
        bench.config.layers[layer],
        bench.layout,
        bench.ops,
        quantisers=quantisers,
        groups=groups,
    )
    found = [
        attention(step.rows(x), step.inputs, bench.pool, StepCarry())[: step.end - step.begin]
        for step in bench.parts([5] * len(x), chunk)
    ]
    return torch.cat(found), bench


@pytest.mark.parametrize("kind", LAYERS)
def test_attention_is_the_formula(kind: str) -> None:
    layer = LAYERS[kind]
    found, _ = run(layer, normal(COUNT, 64), 512)
    assert distance(found, expected(layer)) < 1e-4


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("quantisers", [False, True])
@pytest.mark.parametrize("chunk", [1, 5, 16, 33])
def test_rows_do_not_depend_on_how_they_are_cut(kind: str, quantisers: bool, chunk: int) -> None:
    layer, x = LAYERS[kind], normal(COUNT, 64)
    whole, whole_bench = run(layer, x, 512, quantisers=quantisers)
    found, bench = run(layer, x, chunk, quantisers=quantisers)
    assert torch.equal(found, whole)
    table = bench.table(COUNT)
    assert bench.pool.export_image(table, 2, COUNT) == whole_bench.pool.export_image(
        table, 2, COUNT
    )


@pytest.mark.parametrize("kind", LAYERS)
def test_stored_rows_are_on_the_grid_when_quantisers_act(kind: str) -> None:
    layer, x = LAYERS[kind], normal(COUNT, 64)
    _, bench = run(layer, x, 512, quantisers=True)
    pool, config = bench.pool, bench.config
    first = pool.windows_at + 2 * pool.slot_rows + layer * config.sliding_window
    rows = pool.rows[first : first + config.sliding_window]
    if kind != "window":
        rows = torch.cat([rows, bench.entries(layer, COUNT)])
    plain = rows[:, : config.head_dim - config.rope_head_dim]
    rotated = rows[:, config.head_dim - config.rope_head_dim :]
    assert rows.abs().sum(1).min() > 0.0
    assert torch.equal(bench.ops.quantize_dequantize(plain, "fp8_64"), plain)
    assert torch.equal(rotated.bfloat16().float(), rotated)


def test_a_window_ends_where_it_should() -> None:
    """Position p sees p - 15 but not p - 16."""
    x = normal(COUNT, 64)
    other = x.clone()
    other[10] += 1.0
    changed = (run(0, x, 512)[0] != run(0, other, 512)[0]).any(1)
    assert changed.nonzero()[:, 0].tolist() == list(range(10, 26))


def head_group(rank: int, size: int) -> RankGroups:
    group = LoneGroup("attn_tp")
    group.rank, group.size = rank, size
    return RankGroups(attn_tp=group, path=Path.B)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("size", [2, 4])
def test_addends_of_ranks_that_share_heads_are_the_whole(kind: str, size: int) -> None:
    layer, x = LAYERS[kind], normal(COUNT, 64)
    whole, whole_bench = run(layer, x, 512)
    runs = [run(layer, x, 512, groups=head_group(rank, size)) for rank in range(size)]
    addends = torch.stack([addend for addend, _ in runs])
    assert distance(addends.sum(0), whole) < 1e-5
    assert all(distance(addend, whole) > 1e-2 for addend in addends)
    # The KV is every rank's own, bit by bit.
    table = whole_bench.table(COUNT)
    image = whole_bench.pool.export_image(table, 2, COUNT)
    assert all(bench.pool.export_image(table, 2, COUNT) == image for _, bench in runs)


def test_heads_that_cut_an_output_group_are_refused() -> None:
    """Eight heads in four groups."""
    with pytest.raises(LayoutError, match="attn_tp 8 does not divide both the 8 heads and the 4"):
        run(0, normal(1, 64), 1, groups=head_group(0, 8))
