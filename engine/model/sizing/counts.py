"""Numbers and bytes of the weights of released layers, by kind.

Bytes are those of the checkpoint's format: FP8 matrices with a scale per block, FP4 experts with a
scale per 32 numbers, bf16 embeddings, norms and projections of compressors, float32
hyper-connections; everything in the model's float type without quantisation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FP4_GROUP = 32
_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Weights of one kind: how many numbers, how many bytes."""

    parameters: int
    num_bytes: int


@dataclass(slots=True)
class Counter:
    """Adds up weights by kind.

    Args:
        float_bytes: Bytes of a number in the model's float type.
        block: Edge of an FP8 scale block; None without quantisation.
        parts: Numbers and bytes by kind.
    """

    float_bytes: int
    block: int | None
    parts: dict[str, list[int]] = field(default_factory=dict)

    def matrix(self, part: str, numbers: int) -> None:
        """A linear weight: FP8 with block scales where the model is quantised."""
        if self.block is None:
            self.floats(part, numbers)
        else:
            self._add(part, numbers, numbers + -(-numbers // self.block**2))

    def floats(self, part: str, numbers: int) -> None:
        """Weights in the model's float type."""
        self._add(part, numbers, numbers * self.float_bytes)

    def singles(self, part: str, numbers: int) -> None:
        """Weights in float32."""
        self._add(part, numbers, numbers * 4)

    @classmethod
    def of(cls, raw: Mapping[str, Any], text: Mapping[str, Any]) -> "Counter":
        """Starts with the formats of a config; `text` is its language part."""
        dtype = str(text.get("torch_dtype") or text.get("dtype") or "bfloat16")
        quantisation = raw.get("quantization_config")
        block = None
        if quantisation:
            block = int(quantisation.get("weight_block_size", [128])[0])
        return cls(float_bytes=_FLOAT_BYTES.get(dtype, 2), block=block)

    def expert_bytes(self, raw: Mapping[str, Any], numbers: int) -> tuple[int, int]:
        """Bytes of one expert without and with its scales."""
        quantisation = raw.get("quantization_config") or {}
        if "fp4" in (raw.get("expert_dtype"), quantisation.get("expert_dtype")):
            return numbers // 2, numbers // 2 + numbers // FP4_GROUP
        if self.block is not None:
            return numbers, numbers + -(-numbers // self.block**2)
        return numbers * self.float_bytes, numbers * self.float_bytes

    def done(self) -> dict[str, Part]:
        """The totals."""
        return {n: Part(parameters=p, num_bytes=b) for n, (p, b) in self.parts.items()}

    def _add(self, part: str, numbers: int, num_bytes: int) -> None:
        total = self.parts.setdefault(part, [0, 0])
        total[0] += numbers
        total[1] += num_bytes


def count_layer(counter: Counter, c: Mapping[str, Any], part: str = "attention") -> None:
    """What every layer of both DeepSeek families has, routed experts aside."""
    d, heads, width = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
    q, groups, low = c["q_lora_rank"], c["o_groups"], c["o_lora_rank"]
    streams = c["hc_mult"]
    is_draft = part == "draft"
    counter.matrix(part, q * d + width * d)
    counter.floats(part, q + width + 2 * d)
    sharded = part if is_draft else "heads"
    counter.matrix(sharded, heads * width * q + low * heads * width + d * groups * low)
    counter.singles(sharded, heads)
    sites = streams * (streams + 2)
    mixing = part if is_draft else "hyper_connections"
    counter.singles(mixing, 2 * (sites * streams * d + sites + 3))
    shared = c["n_shared_experts"] * c["moe_intermediate_size"]
    counter.matrix(part if is_draft else "shared_expert", 3 * d * shared)


def count_draft(counter: Counter, c: Mapping[str, Any], stages: int) -> None:
    """What the draft stages of V4.1 have, routed experts aside, as part `draft`."""
    d, vocab, rank = c["hidden_size"], c["vocab_size"], c["dspark_markov_rank"]
    experts = c["dspark_n_routed_experts"]
    for _ in range(stages):
        count_layer(counter, c, "draft")
        counter.floats("draft", experts * d)
        counter.singles("draft", 2 * experts)
    counter.matrix("draft", len(c["dspark_target_layer_ids"]) * d * d)
    # Two norms, the two Markov tables, the confidence projection.
    counter.floats("draft", 2 * d + 2 * vocab * rank + d + rank)
