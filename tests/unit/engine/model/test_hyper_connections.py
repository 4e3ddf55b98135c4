"""Both ends of a sublayer site, and the collapse before the head, against their formulas."""

import functools

import pytest

from engine.model.hyper_connections import HeadCollapse, HyperConnection
from tests.fakes.models import GOLDEN
from tests.fakes.naive_v4 import NaiveV4
from tests.fakes.steps import Bench
from tests.fakes.tensors import distance, normal

HCA8 = GOLDEN / "v4_hca8"


@functools.cache
def naive() -> NaiveV4:
    return NaiveV4(HCA8)


@pytest.mark.parametrize("site", ["layers.0.hc_attn", "layers.3.hc_ffn"])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_a_site_collapses_and_expands(site: str, rows: int) -> None:
    bench = Bench(HCA8)
    connection = HyperConnection(bench.weights, site, bench.config, bench.ops)
    streams, y = normal(rows, 4, 64), normal(rows, 64, seed=1)
    x, coefficients = connection.collapse(streams)
    pre, post, comb = naive().coefficients(streams.double(), site)
    assert distance(x, (pre[:, :, None] * streams.double()).sum(1)) < 1e-4
    found = connection.expand(y, streams, coefficients)
    assert distance(found, naive().expand(y.double(), streams.double(), post, comb)) < 1e-4


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_the_head_collapses(rows: int) -> None:
    bench = Bench(HCA8)
    streams = normal(rows, 4, 64)
    found = HeadCollapse(bench.weights, bench.config, bench.ops)(streams)
    assert distance(found, naive().collapse_head(streams.double())) < 1e-4
