"""config.json: both spellings, the layer schedule, and a clear refusal of everything else."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model.config import LayerKind, ModelConfig, ModelConfigError, YarnConfig
from tests.fakes.models import GOLDEN, TINY

BASE: dict[str, Any] = json.loads((GOLDEN / "v4_base" / "config.json").read_text("utf-8"))


def changed(**values: Any) -> dict[str, Any]:
    return {**BASE, **values}


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in BASE.items() if key not in keys}


def test_released_spelling() -> None:
    config = ModelConfig.load(GOLDEN / "v4_base")
    assert [layer.kind for layer in config.layers] == [
        LayerKind.WINDOW,
        LayerKind.CSA,
        LayerKind.HCA,
        LayerKind.CSA,
        LayerKind.HCA,
    ]
    assert [layer.ratio for layer in config.layers] == [0, 4, 128, 4, 128]
    assert [layer.hash_routed for layer in config.layers] == [True, True, False, False, False]
    assert config.num_layers == 5
    assert config.clean_cut == 128
    assert config.yarn == YarnConfig(
        factor=16.0, beta_fast=32.0, beta_slow=1.0, original_length=256
    )
    assert config.eos_token_ids == (1,)
    assert not config.has_quantised_weights
    assert config.gate_temperature == 1.0


def test_every_compressed_layer_owns_its_entries_and_csa_its_selection() -> None:
    for layer in ModelConfig.load(GOLDEN / "v4_base").layers:
        assert layer.owns_kv is (layer.kind is not LayerKind.WINDOW)
        assert layer.owns_index is (layer.kind is LayerKind.CSA)


def test_the_names_of_the_reference_code() -> None:
    renamed = {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "moe_inter_dim": "moe_intermediate_size",
        "n_activated_experts": "num_experts_per_tok",
        "route_scale": "routed_scaling_factor",
        "norm_eps": "rms_norm_eps",
        "rope_head_dim": "qk_rope_head_dim",
        "window_size": "sliding_window",
        "n_mtp_layers": "num_nextn_predict_layers",
    }
    raw = without(*renamed.values())
    raw.update({short: BASE[long] for short, long in renamed.items()})
    assert ModelConfig.from_dict(raw) == ModelConfig.from_dict(BASE)


def transformers_config() -> dict[str, Any]:
    """The same model as `save_pretrained` of transformers 5.24 describes it."""
    raw = without("compress_ratios", "rope_scaling", "num_hash_layers", "topk_method")
    raw["layer_types"] = [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ]
    raw["compress_rates"] = {
        "compressed_sparse_attention": 4,
        "heavily_compressed_attention": 128,
    }
    raw["mlp_layer_types"] = ["hash_moe", "hash_moe", "moe", "moe", "moe"]
    raw["rope_parameters"] = {
        "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25},
        "compress": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 256,
            "rope_theta": 160000,
            "partial_rotary_factor": 0.25,
            "attention_factor": 1.0,
        },
    }
    return raw


def test_what_transformers_writes() -> None:
    assert ModelConfig.from_dict(transformers_config()) == ModelConfig.from_dict(BASE)
    odd = transformers_config()
    odd["layer_types"][2] = "linear_attention"
    with pytest.raises(ModelConfigError) as caught:
        ModelConfig.from_dict(odd)
    assert "layer_types names linear_attention" in str(caught.value)


def test_the_bundled_model() -> None:
    config = ModelConfig.load(TINY)
    assert [layer.ratio for layer in config.layers] == [0, 4, 32, 4, 32, 4]
    assert config.clean_cut == 32


def test_draft_layers_are_left_out() -> None:
    raw = changed(num_nextn_predict_layers=2, compress_ratios=[*BASE["compress_ratios"], 0, 0])
    assert ModelConfig.from_dict(raw).layers == ModelConfig.from_dict(BASE).layers
    # The ratios of the draft layers may be absent, too.
    assert ModelConfig.from_dict(changed(num_nextn_predict_layers=2)).num_layers == 5


def test_optional_values() -> None:
    config = ModelConfig.from_dict(changed(eos_token_id=[1, 7], gate_temp=2.0))
    assert config.eos_token_ids == (1, 7)
    assert config.gate_temperature == 2.0
    assert ModelConfig.from_dict(changed(eos_token_id=None)).eos_token_ids == (1,)
    assert ModelConfig.from_dict(without("rope_scaling")).yarn is None
    plain = {"rope_type": "default", "rope_theta": 160000}
    config = ModelConfig.from_dict(
        {**without("rope_scaling"), "rope_parameters": {"compress": plain}}
    )
    assert config.yarn is None
    quantised = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    config = ModelConfig.from_dict(changed(quantization_config=quantised))
    assert config.has_quantised_weights
    assert config.weight_block == 32


def test_a_missing_file_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError) as caught:
        ModelConfig.load(tmp_path)
    assert f"model directory {tmp_path} has no config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be read as JSON"),
        (b"", "cannot be read as JSON"),
        (b"\xff\xfe{}", "cannot be read as JSON"),
        (b"[1, 2]", "holds list, wanted a JSON object"),
        (b"{}", "model_type None is not served; supported: 'deepseek_v4'"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelConfigError) as caught:
        ModelConfig.load(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "", 4, None])
def test_other_families_are_refused(family: object) -> None:
    with pytest.raises(ModelConfigError) as caught:
        ModelConfig.from_dict(changed(model_type=family))
    assert f"model_type {family!r} is not served" in str(caught.value)


REQUIRED = sorted(
    set(BASE)
    - {
        "architectures",
        "model_type",
        "torch_dtype",
        "attention_bias",
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "num_key_value_heads",
        "rope_scaling",
        "n_shared_experts",
        "scoring_func",
        "topk_method",
        "norm_topk_prob",
        "routed_scaling_factor",
        "num_hash_layers",
        "hidden_act",
        "num_nextn_predict_layers",
        "tie_word_embeddings",
        "use_cache",
    }
)


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        ModelConfig.from_dict(without(key))
    assert f"config.json lacks {key!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0, wanted an integer of at least 1"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0, wanted an integer"),
        ({"hidden_size": "64"}, "hidden_size is '64', wanted an integer"),
        ({"vocab_size": True}, "vocab_size is True, wanted an integer"),
        ({"index_topk": -1}, "index_topk is -1, wanted an integer"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0, wanted a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan, wanted a positive number"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, wanted a positive number"),
        ({"swiglu_limit": "10"}, "swiglu_limit is '10', wanted a positive number"),
        ({"gate_temp": 0.0}, "gate_temp is 0.0, wanted a positive number"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', wanted a token id"),
        ({"eos_token_id": [1, -2]}, "eos_token_id is [1, -2], wanted a token id"),
        ({"compress_ratios": "0,4"}, "compress_ratios is '0,4', wanted a list"),
        ({"compress_ratios": [0, 4, 128, 4, -1]}, "wanted a list of integers >= 0"),
        ({"compress_ratios": [0, 4, 128, 4, True]}, "wanted a list of integers >= 0"),
        ({"compress_ratios": [0, 4, 128, 4]}, "compress_ratios has 4 entries, num_hidden_layers"),
        ({"compress_ratios": [0] * 6}, "compress_ratios has 6 entries, num_hidden_layers is 5"),
        ({"compress_ratios": [0, 2, 128, 4, 128]}, "compress_ratios[1] is 2; DeepSeek-V4 layers"),
        ({"o_groups": 3}, "num_attention_heads is 8, which o_groups = 3 does not divide"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7, wanted an even number"),
        ({"qk_rope_head_dim": 40}, "qk_rope_head_dim is 40, head_dim only 32"),
        ({"qk_rope_head_dim": 20}, "qk_rope_head_dim is 20, index_head_dim only 16"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, n_routed_experts only 8"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', supported: 'sqrtsoftplus'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', supported: 'silu'"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, supported: 1"),
        ({"attention_bias": True}, "attention_bias is True, supported: False"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False, supported: True"),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, "rope_scaling.type is 'linear'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling lacks 'original_max"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', wanted an object"),
        (
            {"rope_scaling": {**BASE["rope_scaling"], "factor": "x"}},
            "rope_scaling holds no number",
        ),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8', wanted an object"),
        (
            {"quantization_config": {"weight_block_size": [128, 64]}},
            "weight_block_size is [128, 64], wanted [N, N]",
        ),
        (
            {"quantization_config": {"weight_block_size": [0, 0]}},
            "weight_block_size is [0, 0], wanted [N, N]",
        ),
    ],
)
def test_a_value_that_cannot_be_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        ModelConfig.from_dict(changed(**values))
    assert message in str(caught.value)
