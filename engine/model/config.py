"""The model's config.json, both spellings, checked once.

Accepts the released keys, the names of the reference inference code, and what transformers writes.
Everything downstream reads `ModelConfig` only. What a layer owns and what it borrows from an
earlier layer is decided here (`kv_source`, `index_source`): in V4 every compressed layer owns its
entries and its selection; in V4.1 a few layers own them for many.
"""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ModelConfigError(ValueError):
    """A config.json that cannot be served; the message names the key, the value and a way out."""


class LayerKind(enum.Enum):
    """What long-range KV a layer reads beside its window."""

    WINDOW = "window"
    CSA = "csa"
    HCA = "hca"


CSA_RATIO = 4

# Released key -> other spellings of the same value.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("dim",),
    "num_hidden_layers": ("n_layers",),
    "num_attention_heads": ("n_heads",),
    "moe_intermediate_size": ("moe_inter_dim",),
    "num_experts_per_tok": ("n_activated_experts",),
    "scoring_func": ("score_func",),
    "routed_scaling_factor": ("route_scale",),
    "rms_norm_eps": ("norm_eps",),
    "qk_rope_head_dim": ("rope_head_dim",),
    "sliding_window": ("window_size",),
    "num_nextn_predict_layers": ("n_mtp_layers",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnConfig:
    """Frequency blending of the compressed layers' rotary table."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """One layer: its kind, and where its long-range KV and its selection come from."""

    index: int
    kind: LayerKind
    ratio: int
    hash_routed: bool
    kv_source: int | None
    index_source: int | None

    @property
    def owns_kv(self) -> bool:
        """Whether this layer produces compressed entries."""
        return self.kv_source == self.index

    @property
    def owns_index(self) -> bool:
        """Whether this layer selects entries itself."""
        return self.index_source == self.index


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Checked sizes and constants of a DeepSeek-V4 model; names follow the released config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    head_dim: int
    rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    yarn: YarnConfig | None
    max_position_embeddings: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    gate_temperature: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    bos_token_id: int
    eos_token_ids: tuple[int, ...]
    has_quantised_weights: bool
    weight_block: int
    layers: tuple[LayerConfig, ...]

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def clean_cut(self) -> int:
        """Smallest number of tokens after which no compressor group is open."""
        cut = 1
        for layer in self.layers:
            ratio = max(layer.ratio, 1)
            cut = cut * ratio // _gcd(cut, ratio)
        return cut

    @classmethod
    def load(cls, directory: Path) -> "ModelConfig":
        """Reads `directory/config.json`.

        Raises:
            ModelConfigError: no such file, no JSON, an unknown family or a value that cannot be.
        """
        path = directory / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelConfigError(
                f"model directory {directory} has no config.json; give a Hugging Face checkpoint "
                "directory"
            ) from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ModelConfigError(f"{path} cannot be read as JSON: {error}") from error
        if not isinstance(raw, dict):
            raise ModelConfigError(f"{path} holds {type(raw).__name__}, wanted a JSON object")
        return cls.from_dict(raw)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Builds the config from the parsed JSON; see `load`."""
        family = raw.get("model_type")
        if family != "deepseek_v4":
            raise ModelConfigError(f"model_type {family!r} is not served; supported: 'deepseek_v4'")
        read = _Reader(raw)
        ratios = _compress_ratios(read, raw)
        num_hash = read.integer("num_hash_layers", default=_hash_layers(raw), minimum=0)
        layers = tuple(_layer(i, ratio, hash_routed=i < num_hash) for i, ratio in enumerate(ratios))
        quantisation = raw.get("quantization_config")
        config = cls(
            model_type=family,
            vocab_size=read.integer("vocab_size"),
            hidden_size=read.integer("hidden_size"),
            num_attention_heads=read.integer("num_attention_heads"),
            head_dim=read.integer("head_dim"),
            rope_head_dim=read.integer("qk_rope_head_dim"),
            q_lora_rank=read.integer("q_lora_rank"),
            o_groups=read.integer("o_groups"),
            o_lora_rank=read.integer("o_lora_rank"),
            sliding_window=read.integer("sliding_window"),
            rope_theta=read.number("rope_theta"),
            compress_rope_theta=read.number("compress_rope_theta"),
            yarn=_yarn(raw),
            max_position_embeddings=read.integer("max_position_embeddings"),
            index_n_heads=read.integer("index_n_heads"),
            index_head_dim=read.integer("index_head_dim"),
            index_topk=read.integer("index_topk"),
            n_routed_experts=read.integer("n_routed_experts"),
            num_experts_per_tok=read.integer("num_experts_per_tok"),
            n_shared_experts=read.integer("n_shared_experts", default=1, minimum=0),
            moe_intermediate_size=read.integer("moe_intermediate_size"),
            routed_scaling_factor=read.number("routed_scaling_factor", default=1.0),
            gate_temperature=read.number("gate_temp", default=1.0),
            swiglu_limit=read.number("swiglu_limit"),
            hc_mult=read.integer("hc_mult"),
            hc_sinkhorn_iters=read.integer("hc_sinkhorn_iters"),
            hc_eps=read.number("hc_eps"),
            rms_norm_eps=read.number("rms_norm_eps"),
            bos_token_id=read.integer("bos_token_id", default=0, minimum=0),
            eos_token_ids=_eos_token_ids(raw),
            has_quantised_weights=quantisation is not None,
            weight_block=_weight_block(quantisation),
            layers=layers,
        )
        _cross_check(config, raw)
        return config


class _Reader:
    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def _value(self, key: str, default: Any) -> Any:
        for name in (key, *_SPELLINGS.get(key, ())):
            if self._raw.get(name) is not None:
                return self._raw[name]
        if default is None:
            raise ModelConfigError(f"config.json lacks {key!r}; the checkpoint is incomplete")
        return default

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ModelConfigError(
                f"config.json: {key} is {value!r}, wanted an integer of at least {minimum}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not math.isfinite(value) or value <= 0:
            raise ModelConfigError(f"config.json: {key} is {value!r}, wanted a positive number")
        return float(value)

    def ratios(self, default: list[int] | None) -> list[int]:
        value = self._value("compress_ratios", default)
        if not isinstance(value, list) or not all(type(r) is int and r >= 0 for r in value):
            raise ModelConfigError(
                f"config.json: compress_ratios is {value!r}, wanted a list of integers >= 0"
            )
        return value


def _compress_ratios(read: _Reader, raw: Mapping[str, Any]) -> list[int]:
    num_layers = read.integer("num_hidden_layers")
    num_draft = read.integer("num_nextn_predict_layers", default=0, minimum=0)
    ratios = read.ratios(default=_ratios_by_layer_type(raw))
    if len(ratios) not in (num_layers, num_layers + num_draft):
        raise ModelConfigError(
            f"config.json: compress_ratios has {len(ratios)} entries, num_hidden_layers is "
            f"{num_layers} and num_nextn_predict_layers {num_draft}; wanted one entry per layer "
            "and at most one per draft layer"
        )
    return ratios[:num_layers]


def _ratios_by_layer_type(raw: Mapping[str, Any]) -> list[int] | None:
    """What transformers writes instead of compress_ratios: a type per layer, a rate per type."""
    types, rates = raw.get("layer_types"), raw.get("compress_rates")
    if not isinstance(types, list) or not isinstance(rates, dict):
        return None
    known = {"sliding_attention": 0, **rates}
    unknown = sorted({str(kind) for kind in types if kind not in known})
    if unknown:
        raise ModelConfigError(
            f"config.json: layer_types names {', '.join(unknown)}, for which compress_rates has no "
            f"ratio; it has {', '.join(sorted(known))}"
        )
    return [known[kind] for kind in types]


def _eos_token_ids(raw: Mapping[str, Any]) -> tuple[int, ...]:
    found = raw.get("eos_token_id")
    if found is None:
        found = 1
    ids = found if isinstance(found, list) else [found]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise ModelConfigError(
            f"config.json: eos_token_id is {found!r}, wanted a token id or a list of token ids"
        )
    return tuple(ids)


def _layer(index: int, ratio: int, *, hash_routed: bool) -> LayerConfig:
    kind = LayerKind.WINDOW
    if ratio == CSA_RATIO:
        kind = LayerKind.CSA
    elif ratio > 0:
        kind = LayerKind.HCA
    if ratio in (1, 2, 3):
        raise ModelConfigError(
            f"config.json: compress_ratios[{index}] is {ratio}; DeepSeek-V4 layers have 0 "
            f"(window), {CSA_RATIO} (CSA) or more (HCA)"
        )
    return LayerConfig(
        index=index,
        kind=kind,
        ratio=ratio,
        hash_routed=hash_routed,
        kv_source=index if ratio else None,
        index_source=index if kind is LayerKind.CSA else None,
    )


def _hash_layers(raw: Mapping[str, Any]) -> int:
    kinds = raw.get("mlp_layer_types")
    return sum(kind == "hash_moe" for kind in kinds) if isinstance(kinds, list) else 0


def _yarn(raw: Mapping[str, Any]) -> YarnConfig | None:
    parameters = raw.get("rope_parameters")
    scaling = raw.get("rope_scaling")
    if not scaling and isinstance(parameters, dict):
        scaling = parameters.get("compress")
    if not scaling:
        return None
    if not isinstance(scaling, dict):
        raise ModelConfigError(f"config.json: rope_scaling is {scaling!r}, wanted an object")
    kind = scaling.get("type") or scaling.get("rope_type")
    if kind == "default":
        return None
    if kind != "yarn":
        raise ModelConfigError(f"config.json: rope_scaling.type is {kind!r}, supported: 'yarn'")
    try:
        return YarnConfig(
            factor=float(scaling["factor"]),
            beta_fast=float(scaling.get("beta_fast", 32)),
            beta_slow=float(scaling.get("beta_slow", 1)),
            original_length=int(scaling["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelConfigError(f"config.json: rope_scaling lacks {error}") from None
    except (TypeError, ValueError) as error:
        raise ModelConfigError(f"config.json: rope_scaling holds no number: {error}") from None


def _weight_block(quantisation: Any) -> int:
    if quantisation is None:
        return 128
    if not isinstance(quantisation, dict):
        raise ModelConfigError(
            f"config.json: quantization_config is {quantisation!r}, wanted an object"
        )
    block = quantisation.get("weight_block_size", [128, 128])
    sizes = set(block) if isinstance(block, list) and len(block) == 2 else set()
    if len(sizes) != 1 or not all(type(size) is int and size > 0 for size in sizes):
        raise ModelConfigError(
            f"config.json: quantization_config.weight_block_size is {block!r}, wanted [N, N]"
        )
    return block[0]


def _cross_check(config: ModelConfig, raw: Mapping[str, Any]) -> None:
    def divides(what: str, whole: int, by: str, part: int) -> None:
        if whole % part:
            raise ModelConfigError(
                f"config.json: {what} is {whole}, which {by} = {part} does not divide; the "
                "checkpoint and its config do not belong together"
            )

    heads = config.num_attention_heads
    divides("num_attention_heads", heads, "o_groups", config.o_groups)
    if config.rope_head_dim % 2:
        raise ModelConfigError(
            f"config.json: qk_rope_head_dim is {config.rope_head_dim}, wanted an even number"
        )
    for name, value in (
        ("head_dim", config.head_dim),
        ("index_head_dim", config.index_head_dim),
    ):
        if config.rope_head_dim > value:
            raise ModelConfigError(
                f"config.json: qk_rope_head_dim is {config.rope_head_dim}, {name} only {value}"
            )
    if config.num_experts_per_tok > config.n_routed_experts:
        raise ModelConfigError(
            f"config.json: num_experts_per_tok is {config.num_experts_per_tok}, n_routed_experts "
            f"only {config.n_routed_experts}"
        )
    wanted: Mapping[str, tuple[Any, ...]] = {
        "scoring_func": ("sqrtsoftplus",),
        "hidden_act": ("silu",),
        "num_key_value_heads": (1,),
        "attention_bias": (False,),
        "norm_topk_prob": (True,),
    }
    for key, allowed in wanted.items():
        if raw.get(key) is not None and raw[key] not in allowed:
            raise ModelConfigError(f"config.json: {key} is {raw[key]!r}, supported: {allowed[0]!r}")


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a
