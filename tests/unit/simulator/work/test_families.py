"""The compute estimate of released models, against integers of the public engine."""

from __future__ import annotations

from typing import Any

import pytest

from engine.model.config import ModelConfigError
from engine.model.sizing.catalog import read_config
from engine.model.sizing.sizes import ModelSizes
from simulator.work.families import read_work
from tests.fakes.vectors import vectors

VECTORS = vectors("compute_quota")
V41 = read_work(read_config("v4.1-flash"))


@pytest.mark.parametrize("name", VECTORS)
def test_v41_equals_the_public_estimator(name: str) -> None:
    given: dict[str, Any] = VECTORS[name]["inputs"]
    if given["decode"]:
        work = V41.decode(given["q"], given["k"])
    else:
        work = V41.prefill(given["q"], given["k"], prompt=given["prompt"], keep=given["keep"])
    assert work.total == VECTORS[name]["expected"]["quota"]


def test_llama_costs_two_flops_per_parameter_and_token_in_bf16() -> None:
    config = read_config("llama3-70b")
    sizes = ModelSizes.from_config(config)
    matrices = sizes.num_parameters - sizes.vocab_size * sizes.hidden_size
    work = read_work(config).decode(1, 1).total  # FP8-equivalent: twice the bf16 count
    assert work / 2 == pytest.approx(2 * matrices, rel=1e-3)


def test_llama_reads_its_whole_cache() -> None:
    config = read_config("llama3-70b")
    expected = 4096 * ModelSizes.from_config(config).kv_bytes_per_token
    assert read_work(config).read_bytes(4096) == expected


@pytest.mark.parametrize("name", ["v4-flash", "v4-pro"])
def test_v4_compute_follows_its_activated_parameters(name: str) -> None:
    config = read_config(name)
    sizes = ModelSizes.from_config(config)
    shared = sum(part.parameters for part in sizes.parts.values())
    shared -= sizes.vocab_size * sizes.hidden_size
    activated = shared + sizes.num_moe_layers * sizes.top_k * sizes.expert_parameters
    work = read_work(config).decode(1, 1).total
    # FP8 matrices dominate; bf16 compressors, float32 mixing and logits add to two per parameter.
    assert 2.0 < work / activated < 2.6


def test_v41_reads_less_than_it_keeps_in_a_long_context() -> None:
    sizes = ModelSizes.from_config(read_config("v4.1-flash"))
    assert V41.read_bytes(1_000_000) < 0.25 * 1_000_000 * sizes.kv_bytes_per_token


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(ModelConfigError, match=r"'gpt' has no compute estimate.*llama"):
        read_work({"model_type": "gpt"})
    with pytest.raises(ModelConfigError, match="hidden_size"):
        read_work({"model_type": "llama"})
