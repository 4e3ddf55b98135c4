"""Checkpoints: names, formats and shards that must load, and every kind of damage that must not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.config import ModelConfig
from engine.model.weights import CheckpointError, Share, Weights, dequantise, load_weights
from tests.fakes.checkpoints import (
    Tensors,
    config_of,
    tensors_of,
    with_transformers_names,
    write_checkpoint,
    write_shards,
)
from tests.fakes.models import GOLDEN, Solo, load
from tests.fakes.tensors import distance, normal

BASE, QUANT = GOLDEN / "v4_base", GOLDEN / "v4_quant"
PROMPT = [5, 77, 12, 200, 31, 9, 9, 140, 18, 66, 3]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def logits(directory: Path) -> torch.Tensor:
    return Solo(load(directory)).feed(PROMPT)


def damaged(tmp_path: Path, change: Callable[[Tensors], object], source: Path = BASE) -> Path:
    tensors = tensors_of(source)
    change(tensors)
    return write_checkpoint(tmp_path / "damaged", tensors, config_of(source))


def refusal(directory: Path) -> str:
    """The message with which loading the whole model is refused."""
    with pytest.raises(CheckpointError) as caught:
        load.__wrapped__(directory)
    return str(caught.value)


def transformers_config(source: Path) -> dict[str, Any]:
    config = config_of(source)
    ratios = config.pop("compress_ratios")
    names = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    config["layer_types"] = [names.get(r, "heavily_compressed_attention") for r in ratios]
    config["compress_rates"] = {
        "compressed_sparse_attention": 4,
        "heavily_compressed_attention": max(ratios),
    }
    return config


@pytest.mark.medium
def test_names_of_transformers_give_the_same_logits(tmp_path: Path) -> None:
    tensors = with_transformers_names(tensors_of(BASE))
    assert "model.layers.1.self_attn.compressor.indexer.scorer.weights_proj.weight" in tensors
    assert "model.layers.4.mlp.experts.gate_up_proj" in tensors
    directory = write_checkpoint(tmp_path / "hf", tensors, transformers_config(BASE))
    assert torch.equal(logits(directory), logits(BASE))


@pytest.mark.medium
def test_shards_give_the_same_logits(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "shards", tensors_of(QUANT), config_of(QUANT), 3)
    assert torch.equal(logits(directory), logits(QUANT))


@pytest.mark.medium
def test_tensors_that_text_does_not_need_are_passed_over(tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        for name in ("mtp.0.e_proj.weight", "vision.patch.weight", "image_start"):
            tensors[name] = torch.zeros(3)

    assert torch.equal(logits(damaged(tmp_path, add)), logits(BASE))


@pytest.mark.medium
def test_gate_temperature_divides_the_router_logits(tmp_path: Path) -> None:
    """A gate twice as large at temperature 2 is the same gate."""
    tensors = tensors_of(BASE)
    for name in tensors:
        if name.endswith("ffn.gate.weight"):
            tensors[name] = tensors[name] * 2.0
    config = {**config_of(BASE), "gate_temp": 2.0}
    directory = write_checkpoint(tmp_path / "warm", tensors, config)
    assert torch.equal(logits(directory), logits(BASE))


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(BASE)))
    assert "holds no *.safetensors file; is it a checkpoint?" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    directory = write_checkpoint(tmp_path / "cut", tensors_of(BASE), config_of(BASE))
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{path} is not a complete safetensors file" in refusal(directory)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    message = refusal(damaged(tmp_path, lambda tensors: tensors.pop("layers.3.attn.wo_b.weight")))
    assert "tensor layers.3.attn.wo_b.weight is missing; the checkpoint is incomplete" in message


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    message = refusal(
        damaged(tmp_path, lambda tensors: tensors.pop("layers.2.ffn.experts.7.w3.weight"))
    )
    assert "tensor layers.2.ffn.experts.7.w3.weight is missing" in message


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("embed.weight", (255, 64)),
        ("layers.0.attn.wq_a.weight", (64, 24)),
        ("layers.1.attn.compressor.ape", (4, 32)),
        ("layers.2.ffn.gate.bias", (9,)),
        ("layers.4.ffn.experts.0.w2.weight", (64, 33)),
        ("layers.4.hc_ffn_scale", (1,)),
        ("hc_head_scale", (3,)),
        ("norm.weight", (1, 64)),
    ],
)
def test_a_wrong_shape_is_named(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    message = refusal(damaged(tmp_path, lambda tensors: tensors.update({name: normal(*shape)})))
    wanted = tuple(tensors_of(BASE)[name].shape)
    assert f"tensor {name} has shape {shape}, config.json calls for {wanted}" in message


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bool, torch.float8_e5m2])
def test_a_wrong_dtype_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    value = torch.zeros(32, 64).to(dtype)
    message = refusal(
        damaged(tmp_path, lambda tensors: tensors.update({"layers.0.attn.wkv.weight": value}))
    )
    assert f"tensor layers.0.attn.wkv.weight is {dtype} with 2 axes" in message


def test_a_quantised_vector_is_named(tmp_path: Path) -> None:
    value = torch.zeros(64).to(torch.float8_e4m3fn)
    message = refusal(damaged(tmp_path, lambda tensors: tensors.update({"norm.weight": value})))
    assert "tensor norm.weight is torch.float8_e4m3fn with 1 axes" in message


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (torch.zeros(256, 2), "torch.float32 (256, 2), wanted integers (256, 2)"),
        (
            torch.zeros(256, 3, dtype=torch.int64),
            "torch.int64 (256, 3), wanted integers (256, 2)",
        ),
        (torch.full((256, 2), 8), "values from 8 to 8, config.json calls for 0 to 7"),
        (torch.full((256, 2), -1), "values from -1 to -1, config.json calls for 0 to 7"),
    ],
)
def test_a_wrong_routing_table_is_named(tmp_path: Path, table: torch.Tensor, found: str) -> None:
    name = "layers.1.ffn.gate.tid2eid"
    message = refusal(damaged(tmp_path, lambda tensors: tensors.update({name: table})))
    assert f"tensor {name}" in message
    assert found in message


@pytest.mark.medium
def test_a_routing_table_may_have_short_integers(tmp_path: Path) -> None:
    name = "layers.1.ffn.gate.tid2eid"

    def shorten(tensors: Tensors) -> None:
        tensors[name] = tensors[name].to(torch.int32)

    assert torch.equal(logits(damaged(tmp_path, shorten)), logits(BASE))


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["layers.0.attn.compressor.ape"] = torch.zeros(4, 64)
        tensors["layers.5.attn_norm.weight"] = torch.zeros(64)

    message = refusal(damaged(tmp_path, add))
    assert "2 tensors are not part of the model that config.json describes" in message
    assert "layers.0.attn.compressor.ape, layers.5.attn_norm.weight" in message


def test_a_config_of_another_model_is_refused(tmp_path: Path) -> None:
    config = {**config_of(BASE), "hidden_size": 128}
    message = refusal(write_checkpoint(tmp_path / "other", tensors_of(BASE), config))
    assert "has shape (256, 64), config.json calls for (256, 128)" in message


def test_fp8_without_scale_is_named(tmp_path: Path) -> None:
    name = "layers.1.attn.wo_a"
    directory = damaged(tmp_path, lambda tensors: tensors.pop(f"{name}.scale"), QUANT)
    message = refusal(directory)
    assert f"tensor {name}.weight is torch.float8_e4m3fn but has no .scale tensor" in message


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("layers.1.attn.wo_a", (1, 2), "wanted (2, 2) for 128 x 128 blocks"),
        ("layers.1.attn.wo_a", (8, 8), "wanted (2, 2) for 128 x 128 blocks"),
        ("layers.1.ffn.experts.3.w2", (128, 1), "wanted (128, 2) for FP4"),
    ],
)
def test_a_wrong_shape_of_scales_is_named(
    tmp_path: Path, name: str, shape: tuple[int, int], wanted: str
) -> None:
    scale = torch.ones(shape).to(torch.float8_e8m0fnu)
    directory = damaged(tmp_path, lambda t: t.update({f"{name}.scale": scale}), QUANT)
    message = refusal(directory)
    assert f"tensor {name}.weight: scale has shape {shape}, {wanted}" in message


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1, "b": "c"}}']
)
def test_a_broken_index_is_named(tmp_path: Path, content: str) -> None:
    directory = write_shards(tmp_path / "shards", tensors_of(BASE), config_of(BASE), 2)
    path = directory / "model.safetensors.index.json"
    path.write_text(content)
    assert f"{path} is not a safetensors index" in refusal(directory)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "shards", tensors_of(BASE), config_of(BASE), 3)
    (directory / "model-00002-of-00003.safetensors").unlink()
    message = refusal(directory)
    assert "names model-00002-of-00003.safetensors, which is not there" in message


def test_a_tensor_of_the_index_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    tensors = tensors_of(BASE)
    directory = write_shards(tmp_path / "shards", tensors, config_of(BASE), 2)
    part = {key: tensors[key] for key in sorted(tensors)[0::2] if key != "embed.weight"}
    save_file(part, directory / "model-00001-of-00002.safetensors")
    assert "tensor embed.weight is missing" in refusal(directory)


def test_fp8_blocks_are_scaled_one_by_one() -> None:
    weight = (normal(5, 7) * 4).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 2.0], [0.25, 8.0]]).to(torch.float8_e8m0fnu)
    found = dequantise(weight, scale, "w", 4)
    for row in range(5):
        for column in range(7):
            factor = float(scale.float()[row // 4, column // 4])
            assert float(found[row, column]) == float(weight.float()[row, column]) * factor


@pytest.mark.parametrize("columns", [64, 40])
def test_fp4_codes_are_low_nibble_first(columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (3, columns // 2), generator=generator).to(torch.uint8)
    scale = torch.tensor([[1.0, 2.0], [0.5, 4.0], [0.25, 16.0]]).to(torch.float8_e8m0fnu)
    found = dequantise(packed.view(torch.int8), scale, "w", 128)
    assert found.shape == (3, columns)
    for row in range(3):
        for column in range(columns):
            byte = int(packed[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            factor = float(scale.float()[row, column // 32])
            assert float(found[row, column]) == E2M1[code] * factor


def weights(source: Path) -> Weights:
    return load_weights(source, ModelConfig.load(source))


def test_linear_weights_come_out_transposed() -> None:
    found = weights(BASE).linear("layers.0.attn.wq_a", 24, 64)
    assert found.is_contiguous()
    assert torch.equal(found, tensors_of(BASE)["layers.0.attn.wq_a.weight"].t())


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5], [7, 0]])
def test_a_rank_gets_its_own_experts(tmp_path: Path, ids: list[int]) -> None:
    stored = tensors_of(BASE)
    fused = write_checkpoint(tmp_path / "hf", with_transformers_names(stored), config_of(BASE))
    for source in (BASE, fused):
        gate_up, down = weights(source).experts("layers.2.ffn.experts", ids)
        assert gate_up.shape == (len(ids), 64, 64)
        for slot, expert in enumerate(ids):
            prefix = f"layers.2.ffn.experts.{expert}"
            assert distance(gate_up[slot, :, :32], stored[f"{prefix}.w1.weight"].t()) == 0.0
            assert distance(gate_up[slot, :, 32:], stored[f"{prefix}.w3.weight"].t()) == 0.0
            assert distance(down[slot], stored[f"{prefix}.w2.weight"].t()) == 0.0


def test_experts_of_other_ranks_do_not_count_as_left_over() -> None:
    opened = weights(BASE)
    for name, tensor in tensors_of(BASE).items():
        if ".experts." not in name and not name.endswith("tid2eid"):
            opened.tensor(name, tuple(tensor.shape))
    for layer in (0, 1):
        opened.integers(f"layers.{layer}.ffn.gate.tid2eid", (256, 2), 8)
    opened.check_all_used(all_experts=False)
    with pytest.raises(CheckpointError) as caught:
        opened.check_all_used(all_experts=True)
    assert "120 tensors are not part of the model" in str(caught.value)


def test_all_float_formats_are_read_as_float32() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        value = normal(4).to(dtype)
        assert torch.equal(dequantise(value, None, "x", 128), value.float())


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "twice"
    shutil.copytree(GOLDEN / "v4_hca8", directory)
    shutil.copy(directory / "model.safetensors", directory / "model-old.safetensors")
    with pytest.raises(CheckpointError, match=r"is also in model-old\.safetensors; remove"):
        load_weights(directory, ModelConfig.load(directory))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    directory = tmp_path / "damaged"
    shutil.copytree(GOLDEN / "v4_hca8", directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["layers.1.attn.wkv.weight"][3, 5] = value
    save_file(tensors, directory / "model.safetensors")
    config = ModelConfig.load(directory)
    weights = load_weights(directory, config)
    with pytest.raises(CheckpointError, match=r"layers\.1\.attn\.wkv\.weight holds NaN or inf"):
        weights.linear("layers.1.attn.wkv", config.head_dim, config.hidden_size)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_of_a_linear_map_put_together_are_the_map(size: int) -> None:
    name, shape = "layers.1.attn.wq_b", tensors_of(BASE)["layers.1.attn.wq_b.weight"].shape
    whole = weights(BASE).linear(name, *shape)
    shares = [Share(rank=rank, size=size) for rank in range(size)]
    outputs = [weights(BASE).linear(name, *shape, outputs=share) for share in shares]
    inputs = [weights(BASE).linear(name, *shape, inputs=share) for share in shares]
    assert torch.equal(torch.cat(outputs, 1), whole)
    assert torch.equal(torch.cat(inputs, 0), whole)
    assert all(part.is_contiguous() for part in outputs + inputs)


@pytest.mark.parametrize("names", ["released", "transformers"])
def test_shares_of_the_inner_width_put_together_are_the_expert(tmp_path: Path, names: str) -> None:
    source = BASE
    if names == "transformers":
        source = write_checkpoint(
            tmp_path / "renamed", with_transformers_names(tensors_of(BASE)), config_of(BASE)
        )
    prefix, ids = "layers.2.ffn.experts", [5, 0]
    gate_up, down = weights(source).experts(prefix, ids)
    parts = [weights(source).experts(prefix, ids, Share(rank=r, size=2)) for r in range(2)]
    gates, ups = zip(*(part[0].chunk(2, -1) for part in parts), strict=True)
    assert torch.equal(torch.cat([*gates, *ups], -1), gate_up)
    assert torch.equal(torch.cat([part[1] for part in parts], 1), down)


def test_a_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="3 ranks cannot share 64 channels evenly"):
        Share(rank=0, size=3).of(64)
