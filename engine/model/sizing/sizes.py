"""Parameters, bytes and state of a model, from its config.json alone.

For planning: which ranks, how much memory, which traffic. Reads all released families, also those
the engine does not run; a forward pass never looks here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.model.config import ModelConfigError
from engine.model.sizing.counts import FP4_GROUP, Counter, Part, count_draft, count_layer
from engine.parallel.ledger.predict import StepModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Engram:
    """Row tables beside the layers: rows of each table, bytes of a row, rows read per token."""

    rows: tuple[int, ...]
    row_bytes: int
    rows_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What planning needs to know of a model.

    Args:
        family: `deepseek_v4`, `deepseek_v41` or `llama`.
        hidden_size, num_layers, vocab_size: As in the config.
        num_heads: Query heads.
        num_groups: What else attention TP must divide: output groups, or KV heads.
        num_experts, top_k: Routed experts of a layer and choices per token; 0 for a dense model.
        expert_weight_bytes: One expert without its scales.
        expert_bytes: One expert with its scales.
        parts: Weights outside the routed experts, by kind; `heads` and `mlp` divide by attention
            TP, the rest is on every rank.
        draft: Weights of draft stages, not counted elsewhere.
        engram: Row tables, if any.
        max_context: Longest context of the model.
        kv_bytes_per_token: What grows with the context, packed as served.
        state_bytes_per_sequence: Windows, and compressor tails at their largest.
        window_row_bytes: One window row as it travels between context ranks; 0 without windows.
        source_row_bytes: For each layer that pools KV, the projected row before pooling.
        num_draft_stages: Draft layers that keep a window.
    """

    family: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    num_heads: int
    num_groups: int
    num_experts: int
    top_k: int
    expert_parameters: int
    expert_weight_bytes: int
    expert_bytes: int
    parts: Mapping[str, Part]
    draft: Part | None
    engram: Engram | None
    max_context: int
    kv_bytes_per_token: float
    state_bytes_per_sequence: int
    window_row_bytes: int
    source_row_bytes: tuple[int, ...]
    num_draft_stages: int

    @property
    def has_kv_heads(self) -> bool:
        """Whether KV divides by attention TP; a shared latent is whole on every rank."""
        return self.family == "llama"

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts: all or none."""
        return self.num_layers if self.num_experts else 0

    @property
    def expert_intermediate(self) -> int:
        """Inner width of a routed expert, which is three matrices; 0 for a dense model."""
        return self.expert_parameters // (3 * self.hidden_size)

    @property
    def num_parameters(self) -> int:
        """All parameters but those of drafts and row tables' layers (`engram_parameters`)."""
        shared = sum(part.parameters for name, part in self.parts.items() if name != "engram")
        return shared + self.num_moe_layers * self.num_experts * self.expert_parameters

    @property
    def engram_parameters(self) -> int:
        """Parameters of the row tables and of the layers that read them."""
        if self.engram is None:
            return 0
        # Scales are not parameters: a row is one byte a number, plus one scale per 32.
        width = self.engram.row_bytes * FP4_GROUP // (FP4_GROUP + 1)
        return sum(self.engram.rows) * width + self.parts["engram"].parameters

    def step_model(self) -> StepModel:
        """What decides the collectives of a step."""
        engram = self.engram
        return StepModel(
            hidden=self.hidden_size,
            top_k=self.top_k,
            num_layers=self.num_layers,
            num_moe_layers=self.num_moe_layers,
            num_fetches=len(engram.rows) if engram else 0,
            fetch_bytes=engram.rows_per_token * engram.row_bytes if engram else 0,
            window_row_bytes=self.window_row_bytes,
            source_row_bytes=self.source_row_bytes,
            num_draft_stages=self.num_draft_stages,
        )

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> "ModelSizes":
        """Reads a parsed config.json.

        Raises:
            ModelConfigError: an unknown family, or a key that is missing or no number.
        """
        family = raw.get("model_type")
        readers = {"deepseek_v4": _v4, "deepseek_v41": _v41, "llama": _llama}
        if family not in readers:
            raise ModelConfigError(
                f"model_type {family!r} cannot be planned; known: {', '.join(sorted(readers))}"
            )
        try:
            return readers[family](raw)
        except KeyError as error:
            raise ModelConfigError(f"config.json lacks {error}") from None
        except (TypeError, ValueError) as error:
            raise ModelConfigError(f"config.json cannot be read: {error}") from None


def _v4(raw: Mapping[str, Any]) -> ModelSizes:
    counter = Counter.of(raw, raw)
    d, width, rope = raw["hidden_size"], raw["head_dim"], raw["qk_rope_head_dim"]
    layers, experts, vocab = raw["num_hidden_layers"], raw["n_routed_experts"], raw["vocab_size"]
    index, index_heads, q = raw["index_head_dim"], raw["index_n_heads"], raw["q_lora_rank"]
    ratios = list(raw["compress_ratios"])[:layers]
    num_hash = raw.get("num_hash_layers") or 0
    is_packed = counter.block is not None
    # 448 FP8 + 64 bf16 + 7 scales + 1 to a multiple of 8, at the released widths.
    plain = width - rope
    entry = -(-(plain + 2 * rope + -(-plain // 64)) // 8) * 8 if is_packed else 2 * width
    key = index + 4 if is_packed else 2 * index
    kv, tails, sources = 0.0, 0, []
    for number, ratio in enumerate(ratios):
        count_layer(counter, raw)
        counter.floats("router", experts * d)
        if number >= num_hash:
            counter.singles("router", experts)
        if ratio == 4:
            counter.floats("compressor", 2 * 2 * width * d + width)
            counter.singles("compressor", 2 * ratio * width)
            counter.matrix("indexer", index_heads * index * q)
            counter.floats("indexer", index_heads * d + 2 * 2 * index * d + index)
            counter.singles("indexer", 2 * ratio * index)
            kv += (entry + key) / ratio
            tails += 2 * ratio * 2 * (width + index) * 2 * 4
            sources.append(2 * 2 * (width + index) * 4)
        elif ratio:
            counter.floats("compressor", 2 * width * d + width)
            counter.singles("compressor", ratio * width)
            kv += entry / ratio
            tails += ratio * width * 2 * 4
            sources.append(2 * width * 4)
    streams = raw["hc_mult"]
    counter.floats("embeddings", 2 * vocab * d + d)
    counter.singles("hyper_connections", streams * streams * d + streams + 1)
    numbers = 3 * d * raw["moe_intermediate_size"]
    without, with_scales = counter.expert_bytes(raw, numbers)
    return ModelSizes(
        family="deepseek_v4",
        hidden_size=d,
        num_layers=layers,
        vocab_size=vocab,
        num_heads=raw["num_attention_heads"],
        num_groups=raw["o_groups"],
        num_experts=experts,
        top_k=raw["num_experts_per_tok"],
        expert_parameters=numbers,
        expert_weight_bytes=without,
        expert_bytes=with_scales,
        parts=counter.done(),
        draft=None,
        engram=None,
        max_context=raw["max_position_embeddings"],
        kv_bytes_per_token=kv,
        state_bytes_per_sequence=layers * raw["sliding_window"] * entry + tails,
        window_row_bytes=2 * width,
        source_row_bytes=tuple(sources),
        num_draft_stages=0,
    )


def _v41(raw: Mapping[str, Any]) -> ModelSizes:
    c: Mapping[str, Any] = raw["text_config"]
    counter = Counter.of(raw, c)
    d, width = c["hidden_size"], c["head_dim"]
    layers, experts, vocab = c["num_hidden_layers"], c["n_routed_experts"], c["vocab_size"]
    index, index_heads, q = c["index_head_dim"], c["index_n_heads"], c["q_lora_rank"]
    is_packed = counter.block is not None
    row = width + width // 32 if is_packed else 2 * width
    entry = width // 2 + width // 16 if is_packed else 2 * width
    key = index // 2 + index // 32 if is_packed else 2 * index
    kv, tails, sources = 0.0, 0, []
    for number in range(layers):
        count_layer(counter, c)
        counter.floats("router", experts * d)
        counter.singles("router", 2 * experts)  # a second bias serves image tokens
        if number in c["kv_source_layer_ids"]:
            ratio = c["compress_ratios"][number]
            kinds = 2 if ratio > 1 else 1
            counter.floats("compressor", kinds * width * d + width)
            counter.floats("indexer", index * width + index)
            kv += (entry + key) / ratio
            tails += 2 * width * 4 * (ratio - 1)
            sources.append(2 * width * 4 if ratio > 1 else 2 * width)
        if number in c["index_source_layer_ids"]:
            counter.matrix("indexer", index_heads * index * q)
            counter.floats("indexer", index_heads * d)
    counter.floats("embeddings", 2 * vocab * d + d)
    numbers = 3 * d * c["moe_intermediate_size"]
    without, with_scales = counter.expert_bytes(raw, numbers)
    stages = c["num_nextn_predict_layers"]
    columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"]
    row_width, streams = c["engram_head_dim"], c["hc_mult"]
    for _ in c["engram_layer_ids"]:
        counter.matrix("engram", (streams + 1) * d * columns * row_width)
        counter.singles("engram", 2 * streams * d)
    count_draft(counter, c, stages)
    parts = counter.done()
    draft = parts.pop("draft")
    draft_experts = stages * c["dspark_n_routed_experts"]
    return ModelSizes(
        family="deepseek_v41",
        hidden_size=d,
        num_layers=layers,
        vocab_size=vocab,
        num_heads=c["num_attention_heads"],
        num_groups=c["o_groups"],
        num_experts=experts,
        top_k=c["num_experts_per_tok"],
        expert_parameters=numbers,
        expert_weight_bytes=without,
        expert_bytes=with_scales,
        parts=parts,
        draft=Part(
            parameters=draft.parameters + draft_experts * numbers,
            num_bytes=draft.num_bytes + draft_experts * with_scales,
        ),
        engram=Engram(
            rows=tuple(c["engram_num_embeddings"]),
            row_bytes=row_width + row_width // FP4_GROUP,
            rows_per_token=columns,
        ),
        max_context=c["max_position_embeddings"],
        kv_bytes_per_token=kv,
        state_bytes_per_sequence=(layers + stages) * c["sliding_window"] * row + tails,
        window_row_bytes=2 * width,
        source_row_bytes=tuple(sources),
        num_draft_stages=stages,
    )


def _llama(raw: Mapping[str, Any]) -> ModelSizes:
    counter = Counter.of(raw, raw)
    d, layers, vocab = raw["hidden_size"], raw["num_hidden_layers"], raw["vocab_size"]
    heads = raw["num_attention_heads"]
    kv_heads = raw.get("num_key_value_heads") or heads
    width = raw.get("head_dim") or d // heads
    for _ in range(layers):
        counter.matrix("heads", 2 * d * heads * width + 2 * d * kv_heads * width)
        counter.matrix("mlp", 3 * d * raw["intermediate_size"])
        counter.floats("attention", 2 * d)
    copies = 1 if raw.get("tie_word_embeddings") else 2
    counter.floats("embeddings", copies * vocab * d + d)
    return ModelSizes(
        family="llama",
        hidden_size=d,
        num_layers=layers,
        vocab_size=vocab,
        num_heads=heads,
        num_groups=kv_heads,
        num_experts=0,
        top_k=0,
        expert_parameters=0,
        expert_weight_bytes=0,
        expert_bytes=0,
        parts=counter.done(),
        draft=None,
        engram=None,
        max_context=raw["max_position_embeddings"],
        kv_bytes_per_token=2.0 * layers * kv_heads * width * 2,
        state_bytes_per_sequence=0,
        window_row_bytes=0,
        source_row_bytes=(),
        num_draft_stages=0,
    )
