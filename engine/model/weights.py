"""Checkpoint directory to parameters: names, formats, and each rank's own part.

Reads safetensors (one file or an index of shards) with the released DeepSeek-V4 names or the ones
transformers writes, dequantises FP8 and FP4 to float32, and checks that every tensor the config
calls for is there with its shape and type. Linear weights come out transposed, `[in, out]`.

A rank keeps all parameters but the experts of other ranks and, where ranks share heads or the inner
width of experts, the parts of its peers.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.handoff import weight_files
from engine.model.config import ModelConfig

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
QUANTISED_TYPES = (torch.float8_e4m3fn, torch.int8, torch.uint8)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_FP4_GROUP = 32


class CheckpointError(ValueError):
    """A checkpoint that cannot be served; the message names file, tensor, found and wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one of `size` ranks keeps of an axis: part `rank` of equal contiguous parts."""

    rank: int = 0
    size: int = 1

    def of(self, total: int) -> slice:
        """Returns this rank's part of an axis.

        Raises:
            ValueError: the axis does not divide.
        """
        if total % self.size:
            raise ValueError(
                f"{self.size} ranks cannot share {total} channels evenly: use a number of ranks "
                "that divides them"
            )
        width = total // self.size
        return slice(self.rank * width, (self.rank + 1) * width)


WHOLE = Share()


# transformers name -> released name. Order matters: the longer pattern comes first.
_TRANSFORMERS_NAMES: tuple[tuple[str, str], ...] = (
    (r"^model\.embed_tokens\.", "embed."),
    (r"^lm_head\.", "head."),
    (r"^model\.", ""),
    (r"^hc_head\.hc_", "hc_head_"),
    (r"\.self_attn\.", ".attn."),
    (r"\.mlp\.", ".ffn."),
    (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.attn_hc\.", ".hc_attn_"),
    (r"\.ffn_hc\.", ".hc_ffn_"),
    (r"\.attn\.sinks$", ".attn.attn_sink"),
    (r"\.compressor\.indexer\.scorer\.weights_proj\.", ".indexer.weights_proj."),
    (r"\.compressor\.indexer\.q_b_proj\.", ".indexer.wq_b."),
    (r"\.compressor\.indexer\.kv_proj\.", ".indexer.compressor.wkv."),
    (r"\.compressor\.indexer\.gate_proj\.", ".indexer.compressor.wgate."),
    (r"\.compressor\.indexer\.kv_norm\.", ".indexer.compressor.norm."),
    (r"\.compressor\.indexer\.position_bias$", ".indexer.compressor.ape"),
    (r"\.compressor\.kv_proj\.", ".compressor.wkv."),
    (r"\.compressor\.gate_proj\.", ".compressor.wgate."),
    (r"\.compressor\.kv_norm\.", ".compressor.norm."),
    (r"\.compressor\.position_bias$", ".compressor.ape"),
    (r"\.q_a_proj\.", ".wq_a."),
    (r"\.q_b_proj\.", ".wq_b."),
    (r"\.attn\.kv_proj\.", ".attn.wkv."),
    (r"\.o_a_proj\.", ".wo_a."),
    (r"\.o_b_proj\.", ".wo_b."),
    (r"\.q_a_norm\.", ".q_norm."),
    (r"\.gate\.e_score_correction_bias$", ".gate.bias"),
    (r"\.shared_experts\.gate_proj\.", ".shared_experts.w1."),
    (r"\.shared_experts\.up_proj\.", ".shared_experts.w3."),
    (r"\.shared_experts\.down_proj\.", ".shared_experts.w2."),
)
_IGNORED = re.compile(r"^(mtp\.|vision\.|aligner\.|image_)|rotary_emb|inv_freq|num_batches_tracked")


class _Files:
    """The tensors of a checkpoint directory by released name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._where: dict[str, tuple[Path, str]] = {}
        # Kept open: opening reads the names of all tensors again.
        self._open: dict[Path, Any] = {}
        for path in _shards(directory):
            try:
                self._open[path] = safe_open(path, framework="pt")
                names = list(self._open[path].keys())
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{path} is not a complete safetensors file ({error}); copy it again"
                ) from error
            for name in names:
                released = _released_name(name)
                if released in self._where:
                    raise CheckpointError(
                        f"{path}: tensor {name} is also in {self._where[released][0].name}; "
                        "remove the file that does not belong to the checkpoint"
                    )
                self._where[released] = (path, name)

    def names(self) -> Iterator[str]:
        return iter(self._where)

    def has(self, name: str) -> bool:
        return name in self._where

    def raw(self, name: str) -> torch.Tensor:
        if name not in self._where:
            raise CheckpointError(
                f"{self.directory}: tensor {name} is missing; the checkpoint is incomplete or its "
                "config.json belongs to another model"
            )
        path, stored = self._where[name]
        try:
            tensor: torch.Tensor = self._open[path].get_tensor(stored)
            return tensor
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: tensor {stored} cannot be read: {error}") from error

    def scale(self, name: str) -> torch.Tensor | None:
        if not name.endswith(".weight"):
            return None
        scale = name.removesuffix("weight") + "scale"
        return self.raw(scale) if self.has(scale) else None


def _shards(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            weight_map: Mapping[str, str] = json.loads(index.read_text("utf-8"))["weight_map"]
            names = sorted(set(weight_map.values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index} is not a safetensors index: {error!r}") from error
        paths = [directory / name for name in names]
    else:
        paths = weight_files(directory)
    if not paths:
        raise CheckpointError(f"{directory} holds no *.safetensors file; is it a checkpoint?")
    for path in paths:
        if not path.exists():
            raise CheckpointError(f"{index} names {path.name}, which is not there; copy it again")
    return paths


def _released_name(name: str) -> str:
    for pattern, replacement in _TRANSFORMERS_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def dequantise(
    weight: torch.Tensor, scale: torch.Tensor | None, name: str, block: int
) -> torch.Tensor:
    """Returns the float32 values of a stored weight.

    Args:
        weight: float, FP8 E4M3 [out, in] or FP4 codes int8 [out, in / 2], low nibble first.
        scale: E8M0 scales: [out / block, in / block] for FP8, [out, in / 32] for FP4.
        name: For messages.
        block: Edge of an FP8 scale block.

    Raises:
        CheckpointError: unknown dtype, missing scales, or scales of another shape.
    """
    if weight.dtype in FLOAT_TYPES:
        return weight.float()
    if weight.dtype not in QUANTISED_TYPES or weight.dim() != 2:
        raise CheckpointError(
            f"tensor {name} is {weight.dtype} with {weight.dim()} axes; only floats and, with two "
            "axes, FP8 E4M3 and packed FP4 can be read"
        )
    if scale is None:
        raise CheckpointError(f"tensor {name} is {weight.dtype} but has no .scale tensor")
    wide = scale.float()
    if weight.dtype is torch.float8_e4m3fn:
        rows, columns = weight.shape
        wanted = (-(-rows // block), -(-columns // block))
        if tuple(wide.shape) != wanted:
            raise CheckpointError(
                f"tensor {name}: scale has shape {tuple(wide.shape)}, wanted {wanted} for "
                f"{block} x {block} blocks"
            )
        wide = wide.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
        return weight.float() * wide
    codes = weight.view(torch.uint8).to(torch.int64)
    table = torch.tensor(_E2M1)
    values = torch.stack([table[codes & 15], table[codes >> 4]], -1).flatten(-2)
    rows, columns = values.shape
    wanted = (rows, -(-columns // _FP4_GROUP))
    if tuple(wide.shape) != wanted:
        raise CheckpointError(
            f"tensor {name}: scale has shape {tuple(wide.shape)}, wanted {wanted} for FP4"
        )
    return values * wide.repeat_interleave(_FP4_GROUP, 1)[:, :columns]


class Weights:
    """Typed access to a checkpoint: every call checks shape and type and counts as used."""

    def __init__(self, directory: Path, config: ModelConfig) -> None:
        self.config = config
        self._files = _Files(directory)
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        return self._files.has(name)

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns a tensor as float32 in its stored orientation.

        Raises:
            CheckpointError: missing, of another shape, or of a dtype that cannot be read.
        """
        raw = self._files.raw(name)
        scale = self._files.scale(name)
        self._used.add(name)
        if scale is not None:
            self._used.add(name.removesuffix("weight") + "scale")
        value = dequantise(raw, scale, name, self.config.weight_block)
        if tuple(value.shape) != shape:
            raise CheckpointError(
                f"tensor {name} has shape {tuple(value.shape)}, config.json calls for {shape}"
            )
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(
                f"tensor {name} holds NaN or infinite values; the file is damaged: copy it again"
            )
        return value

    def linear(
        self,
        name: str,
        out_features: int,
        in_features: int,
        *,
        outputs: Share = WHOLE,
        inputs: Share = WHOLE,
    ) -> torch.Tensor:
        """Returns the weight of a linear map, or a part of it, as `[in, out]` float32, contiguous.

        Args:
            name: Without `.weight`.
            out_features, in_features: Of the stored weight.
            outputs, inputs: What this rank keeps of either.
        """
        weight = self.tensor(f"{name}.weight", (out_features, in_features))
        return weight[outputs.of(out_features), inputs.of(in_features)].t().contiguous()

    def integers(self, name: str, shape: tuple[int, ...], limit: int) -> torch.Tensor:
        """Returns an integer table as int64; all values lie in [0, limit)."""
        raw = self._files.raw(name)
        self._used.add(name)
        if raw.dtype not in (torch.int32, torch.int64) or tuple(raw.shape) != shape:
            raise CheckpointError(
                f"tensor {name} is {raw.dtype} {tuple(raw.shape)}, wanted integers {shape}"
            )
        if raw.numel() and (int(raw.min()) < 0 or int(raw.max()) >= limit):
            raise CheckpointError(
                f"tensor {name} has values from {int(raw.min())} to {int(raw.max())}, config.json "
                f"calls for 0 to {limit - 1}"
            )
        return raw.to(torch.int64)

    def experts(
        self, prefix: str, logical_ids: list[int], inner: Share = WHOLE
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the experts a rank holds: gate_up [slots, d, 2 I] and down [slots, I, d].

        Args:
            prefix: Of the layer's experts.
            logical_ids: The expert of each slot.
            inner: What this rank keeps of every expert's inner width; I is its part.
        """
        d, width = self.config.hidden_size, self.config.moe_intermediate_size
        kept = inner.of(width)
        if self.has(f"{prefix}.gate_up_proj"):
            num = self.config.n_routed_experts
            gate_up = self.tensor(f"{prefix}.gate_up_proj", (num, 2 * width, d))[logical_ids]
            down = self.tensor(f"{prefix}.down_proj", (num, d, width))[logical_ids]
            gate_up = gate_up.unflatten(1, (2, width))[:, :, kept].flatten(1, 2)
            return gate_up.mT.contiguous(), down[:, :, kept].mT.contiguous()
        gate_ups, downs = [], []
        for e in logical_ids:
            gate = self.linear(f"{prefix}.{e}.w1", width, d, outputs=inner)
            up = self.linear(f"{prefix}.{e}.w3", width, d, outputs=inner)
            gate_ups.append(torch.cat([gate, up], 1))
            downs.append(self.linear(f"{prefix}.{e}.w2", d, width, inputs=inner))
        return torch.stack(gate_ups), torch.stack(downs)

    def check_all_used(self, *, all_experts: bool) -> None:
        """Raises CheckpointError for tensors that no part of the model asked for.

        Args:
            all_experts: Whether this rank holds every expert; else experts are not counted.
        """
        left = [
            name
            for name in self._files.names()
            if name not in self._used
            and not _IGNORED.search(name)
            and (all_experts or ".experts." not in name)
        ]
        if left:
            shown = ", ".join(sorted(left)[:5])
            raise CheckpointError(
                f"{self._files.directory}: {len(left)} tensors are not part of the model that "
                f"config.json describes: {shown}"
            )


def load_weights(directory: Path, config: ModelConfig) -> Weights:
    """Opens a checkpoint directory.

    Raises:
        CheckpointError: no safetensors file, or one that is truncated.
    """
    return Weights(directory, config)
