"""The self-test of batch invariance: passes here, and finds each operation that breaks the rule."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from disagg_kernels import select_kernels
from disagg_kernels.reference import OPERATIONS
from disagg_kernels.testing import Shapes, row_dependences
from tests.fakes.kernels import kernels_with

SHAPES = Shapes(
    linear=((16, 8), (600, 8)),
    group_linear=(2, 16, 8),
    heads=2,
    head_dim=8,
    index_heads=2,
    index_width=8,
    streams=2,
    hidden=16,
    experts=4,
    routed=6,
    top_k=2,
    expert_width=8,
)


def test_the_reference_has_no_dependence() -> None:
    assert row_dependences(select_kernels("cpu"), SHAPES) == []


def shifted_by_rows(name: str, argument: int) -> Callable[..., Any]:
    """The operation, with results that move a little with the size of one argument."""

    def run(*arguments: Any) -> Any:
        result = OPERATIONS[name](*arguments)
        return result + 1e-6 * arguments[argument].shape[0]

    return run


def experts_by_load(rows: Any, row_weight: Any, slots: Any, *rest: Any) -> Any:
    result = OPERATIONS["grouped_experts"](rows, row_weight, slots, *rest)
    return result + 1e-6 * int((slots == 0).sum())


def attention_by_columns(query: Any, source: Any, rows: Any, *rest: Any) -> Any:
    return OPERATIONS["sparse_attention"](query, source, rows, *rest) + 1e-6 * rows.shape[1]


def weights_by_rows(logits: Any, *rest: Any) -> Any:
    ids, weights = OPERATIONS["route"](logits, *rest)
    return ids, weights + 1e-6 * logits.shape[0]


def scores_by_keys(query: Any, weight: Any, keys: Any, *rest: Any) -> Any:
    return OPERATIONS["index_logits"](query, weight, keys, *rest) + 1e-6 * keys.shape[1]


@pytest.mark.parametrize(
    ("name", "broken", "sentence"),
    [
        ("linear", shifted_by_rows("linear", 0), "linear 16 x 8 with [8, 16, 40] rows differs"),
        ("rms_norm", shifted_by_rows("rms_norm", 0), "rms_norm with [8, 16, 40] rows differs"),
        ("apply_rope", shifted_by_rows("apply_rope", 0), "apply_rope with"),
        ("group_linear", shifted_by_rows("group_linear", 0), "group_linear with"),
        ("route", weights_by_rows, "route with"),
        ("swiglu", shifted_by_rows("swiglu", 0), "swiglu with"),
        ("compress", shifted_by_rows("compress", 0), "compress with"),
        ("hc_mix", shifted_by_rows("hc_mix", 0), "hyper-connections with"),
        ("hc_post", shifted_by_rows("hc_post", 0), "hyper-connections with"),
        ("grouped_experts", experts_by_load, "experts: a row depends on the other rows"),
        ("sparse_attention", shifted_by_rows("sparse_attention", 0), "attention over 16 keys"),
        ("sparse_attention", attention_by_columns, "attention over 16 keys"),
        ("index_logits", scores_by_keys, "index scores: a chunk differs"),
    ],
)
def test_a_broken_operation_is_named(name: str, broken: Callable[..., Any], sentence: str) -> None:
    found = row_dependences(kernels_with(**{name: broken}), SHAPES)
    assert any(line.startswith(sentence) for line in found), found


def test_only_the_broken_one_is_named() -> None:
    def by_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shift = 1e-6 * x.shape[0] if weight.shape[0] == 600 else 0.0
        return OPERATIONS["linear"](x, weight) + shift

    found = row_dependences(kernels_with(linear=by_rows), SHAPES)
    assert [line.split(" with")[0] for line in found] == ["linear 600 x 8"]
