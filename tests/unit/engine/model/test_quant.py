"""Where the model's quantisers act: plain channels FP8, rotated ones bfloat16, index rows FP4."""

import dataclasses

import pytest
import torch

from disagg_kernels import select_kernels
from engine.model.config import ModelConfig, ModelConfigError
from engine.model.quant import IndexQuantiser, KvQuantiser
from tests.fakes.models import GOLDEN
from tests.fakes.tensors import normal

OPS = select_kernels("cpu")
CONFIG = ModelConfig.load(GOLDEN / "v4_quant")


@pytest.mark.parametrize("kind", [KvQuantiser, IndexQuantiser])
def test_off_is_the_identity(kind: type[KvQuantiser]) -> None:
    rows = normal(3, 64)
    assert torch.equal(kind(CONFIG, OPS, enabled=False)(rows), rows)


def test_kv_rows_are_rounded_by_part() -> None:
    plain = CONFIG.head_dim - CONFIG.rope_head_dim
    rows = normal(5, CONFIG.head_dim) * 3.0
    found = KvQuantiser(CONFIG, OPS, enabled=True)(rows)
    assert torch.equal(found[:, :plain], OPS.quantize_dequantize(rows[:, :plain], "fp8_64"))
    assert torch.equal(found[:, plain:], rows[:, plain:].bfloat16().float())
    assert not torch.equal(found, rows)


def test_kv_rows_rounded_twice_are_rounded_once() -> None:
    quantise = KvQuantiser(CONFIG, OPS, enabled=True)
    once = quantise(normal(40, CONFIG.head_dim))
    assert torch.equal(quantise(once), once)


def test_index_rows_are_turned_before_they_are_rounded() -> None:
    rows = normal(4, 3, CONFIG.index_head_dim)
    found = IndexQuantiser(CONFIG, OPS, enabled=True)(rows)
    assert torch.equal(found, OPS.quantize_dequantize(OPS.hadamard(rows), "fp4_32"))
    assert torch.equal(OPS.quantize_dequantize(found, "fp4_32"), found)


def test_a_width_that_cannot_be_turned_is_refused_at_load() -> None:
    odd = dataclasses.replace(CONFIG, index_head_dim=24)
    IndexQuantiser(odd, OPS, enabled=False)
    with pytest.raises(ModelConfigError) as caught:
        IndexQuantiser(odd, OPS, enabled=True)
    assert "index_head_dim is 24" in str(caught.value)
    assert "set model.kv_quantisers to off" in str(caught.value)


@pytest.mark.parametrize("kind", [KvQuantiser, IndexQuantiser])
def test_no_rows_are_legal(kind: type[KvQuantiser]) -> None:
    assert kind(CONFIG, OPS, enabled=True)(normal(0, 64)).shape == (0, 64)
