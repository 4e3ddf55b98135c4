"""Checkpoint directories for tests: copies with a change, shards, and the names of transformers."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

# Released name -> transformers name, in this order.
_RENAMED = (
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^norm\.", "model.norm."),
    (r"^hc_head_(fn|base|scale)$", r"model.hc_head.hc_\1"),
    (r"^layers\.", "model.layers."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.hc_attn_(fn|base|scale)$", r".attn_hc.\1"),
    (r"\.hc_ffn_(fn|base|scale)$", r".ffn_hc.\1"),
    (r"\.attn\.indexer\.compressor\.wkv\.", ".self_attn.compressor.indexer.kv_proj."),
    (r"\.attn\.indexer\.compressor\.wgate\.", ".self_attn.compressor.indexer.gate_proj."),
    (r"\.attn\.indexer\.compressor\.norm\.", ".self_attn.compressor.indexer.kv_norm."),
    (r"\.attn\.indexer\.compressor\.ape$", ".self_attn.compressor.indexer.position_bias"),
    (r"\.attn\.indexer\.wq_b\.", ".self_attn.compressor.indexer.q_b_proj."),
    (
        r"\.attn\.indexer\.weights_proj\.",
        ".self_attn.compressor.indexer.scorer.weights_proj.",
    ),
    (r"\.attn\.compressor\.wkv\.", ".self_attn.compressor.kv_proj."),
    (r"\.attn\.compressor\.wgate\.", ".self_attn.compressor.gate_proj."),
    (r"\.attn\.compressor\.norm\.", ".self_attn.compressor.kv_norm."),
    (r"\.attn\.compressor\.ape$", ".self_attn.compressor.position_bias"),
    (r"\.attn\.attn_sink$", ".self_attn.sinks"),
    (r"\.attn\.wq_a\.", ".self_attn.q_a_proj."),
    (r"\.attn\.wq_b\.", ".self_attn.q_b_proj."),
    (r"\.attn\.wkv\.", ".self_attn.kv_proj."),
    (r"\.attn\.wo_a\.", ".self_attn.o_a_proj."),
    (r"\.attn\.wo_b\.", ".self_attn.o_b_proj."),
    (r"\.attn\.q_norm\.", ".self_attn.q_a_norm."),
    (r"\.attn\.kv_norm\.", ".self_attn.kv_norm."),
    (r"\.ffn\.gate\.bias$", ".mlp.gate.e_score_correction_bias"),
    (r"\.ffn\.gate\.", ".mlp.gate."),
    (r"\.ffn\.shared_experts\.w1\.", ".mlp.shared_experts.gate_proj."),
    (r"\.ffn\.shared_experts\.w3\.", ".mlp.shared_experts.up_proj."),
    (r"\.ffn\.shared_experts\.w2\.", ".mlp.shared_experts.down_proj."),
)
_EXPERT = re.compile(r"^layers\.(\d+)\.ffn\.experts\.(\d+)\.(w[123])\.weight$")


def tensors_of(directory: Path) -> Tensors:
    """Returns the tensors of a checkpoint of one file."""
    return load_file(directory / "model.safetensors")


def config_of(directory: Path) -> dict[str, Any]:
    """Returns the parsed config.json."""
    parsed: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return parsed


def write_checkpoint(directory: Path, tensors: Tensors, config: Mapping[str, Any]) -> Path:
    """Writes a checkpoint of one file and returns the directory."""
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def write_shards(directory: Path, tensors: Tensors, config: Mapping[str, Any], count: int) -> Path:
    """Writes a checkpoint of `count` files with an index and returns the directory."""
    directory.mkdir(exist_ok=True)
    weight_map = {}
    for shard in range(count):
        name = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::count]}
        save_file(part, directory / name)
        weight_map.update(dict.fromkeys(part, name))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def with_transformers_names(tensors: Tensors) -> Tensors:
    """Returns float tensors of released names under the names of transformers, experts fused."""
    renamed: Tensors = {}
    experts: dict[tuple[int, str], dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = _EXPERT.match(name)
        if found:
            layer, expert, part = int(found[1]), int(found[2]), found[3]
            experts.setdefault((layer, part), {})[expert] = tensor
            continue
        for pattern, replacement in _RENAMED:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    for layer in sorted({layer for layer, _ in experts}):
        w1, w2, w3 = (
            torch.stack([experts[layer, part][e] for e in sorted(experts[layer, part])])
            for part in ("w1", "w2", "w3")
        )
        renamed[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.cat([w1, w3], 1)
        renamed[f"model.layers.{layer}.mlp.experts.down_proj"] = w2.contiguous()
    return renamed


def with_layers(source: Path, directory: Path, layers: Sequence[int], **changes: object) -> Path:
    """Writes a checkpoint of some layers of another, in this order, and returns the directory.

    Layers of hash routing must come first. `changes` are values of the config that no tensor
    depends on.
    """
    tensors, config = tensors_of(source), config_of(source)
    chosen = {name: t for name, t in tensors.items() if not name.startswith("layers.")}
    for index, layer in enumerate(layers):
        prefix = f"layers.{layer}."
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                chosen[f"layers.{index}.{name.removeprefix(prefix)}"] = tensor.clone()
    num_hash = sum(layer < config["num_hash_layers"] for layer in layers)
    ratios = [config["compress_ratios"][layer] for layer in layers]
    changed = {
        **config,
        "num_hidden_layers": len(layers),
        "num_hash_layers": num_hash,
        "compress_ratios": ratios,
        **changes,
    }
    return write_checkpoint(directory, chosen, changed)
