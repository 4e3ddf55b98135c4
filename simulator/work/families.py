"""From a config.json to a `ModelWork`: what each released family computes per layer.

V4.1 follows the compute estimator of the public engine to the last FLOP. V4 is counted with the
same rules from its own layers, LLaMA from its matrices; for those two nothing is published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from engine.model.config import ModelConfigError
from simulator.work.flops import Layers, ModelWork
from simulator.work.pairs import Visits

_FP8, _BF16, _FLOAT32 = 2, 4, 8  # FP8-equivalent FLOPs of a multiply-add
_REPLAY_FROM = 1  # replay leaves out the layers from the first one with this compression ratio


def read_work(raw: Mapping[str, Any]) -> ModelWork:
    """What a parsed config.json makes a rank compute.

    Raises:
        ModelConfigError: an unknown family, or a key that is missing.
    """
    family = raw.get("model_type")
    readers = {"deepseek_v4": _v4, "deepseek_v41": _v41, "llama": _llama}
    if family not in readers:
        raise ModelConfigError(
            f"model_type {family!r} has no compute estimate; known: {', '.join(sorted(readers))}"
        )
    try:
        return readers[family](raw)
    except KeyError as error:
        raise ModelConfigError(f"config.json lacks {error}") from None


def _common_row(c: Mapping[str, Any]) -> int:
    """A row of any DeepSeek layer, routed experts and indexer aside."""
    h, q, streams = c["hidden_size"], c["q_lora_rank"], c["hc_mult"]
    heads = c["num_attention_heads"] * c["head_dim"]
    shared = _FP8 * 3 * h * c["moe_intermediate_size"] * c["n_shared_experts"]
    router = _BF16 * h * c["n_routed_experts"]
    mixing = 2 * _FLOAT32 * (streams * h * streams * (streams + 2) + streams * h)
    mixing += 2 * _FLOAT32 * streams * (streams + 1) * h
    attention = _FP8 * (h * (q + c["head_dim"]) + q * heads + heads * c["o_lora_rank"])
    attention += _FP8 * c["o_groups"] * c["o_lora_rank"] * h
    return int(shared + router + mixing + attention)


def _index_row(c: Mapping[str, Any]) -> int:
    """What a layer with an indexer adds to a row."""
    width = c["index_n_heads"] * c["index_head_dim"]
    return int(_FP8 * c["q_lora_rank"] * width + _BF16 * c["hidden_size"] * c["index_n_heads"])


def _routed_row(c: Mapping[str, Any]) -> int:
    expert = _FP8 * 3 * c["hidden_size"] * c["moe_intermediate_size"]
    return int(expert * c["num_experts_per_tok"])


def _attention_pair(c: Mapping[str, Any]) -> int:
    return int(_BF16 * 2 * c["num_attention_heads"] * c["head_dim"])


def _v41(raw: Mapping[str, Any]) -> ModelWork:
    c: Mapping[str, Any] = raw["text_config"]
    h, width, index, top = c["hidden_size"], c["head_dim"], c["index_head_dim"], c["index_topk"]
    packed = bool(raw.get("quantization_config"))
    row_bytes = width + width // 32 if packed else 2 * width
    entry_bytes = width // 2 + width // 16 if packed else 2 * width
    key_bytes = index // 2 + index // 32 if packed else 2 * index
    pair, index_pair = _attention_pair(c), c["index_n_heads"] * index
    ratios = c["compress_ratios"][: c["num_hidden_layers"]]
    replayed_from = ratios.index(_REPLAY_FROM) if _REPLAY_FROM in ratios else len(ratios)
    engram_row = 0
    if c["engram_layer_ids"]:
        columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * c["engram_head_dim"]
        engram_row = _FP8 * columns * h * (c["hc_mult"] + 1) + _FLOAT32 * c["hc_mult"] * h
    sums = _Sums()
    for layer, ratio in enumerate(ratios):
        is_replayed, is_source = layer >= replayed_from, layer in c["kv_source_layer_ids"]
        row = _common_row(c)
        sums.visit(
            is_replayed,
            Visits(flops=pair, entry_bytes=row_bytes, cap=c["sliding_window"], is_window=True),
        )
        if layer in c["engram_layer_ids"]:
            row += engram_row
        if ratio:
            visit = Visits(flops=pair, entry_bytes=entry_bytes, ratio=ratio, cap=top)
            sums.visit(is_replayed, visit)
        if layer in c["index_source_layer_ids"]:
            row += _index_row(c)
            candidates = layer > c["candidate_source_layer_id"]
            visit = Visits(
                flops=index_pair,
                entry_bytes=key_bytes,
                ratio=ratio,
                cap=c["candidate_topk_blocks"] if candidates else None,
                group=c["candidate_block_size"] if candidates else 1,
            )
            sums.visit(is_replayed, visit)
        if is_source:
            sums.add(is_replayed, full_row=_BF16 * h * width * (2 if ratio > 1 else 1))
            sums.entry(is_replayed, ratio, _BF16 * width * index)
        if layer == replayed_from:
            streams = c["hc_mult"]
            sums.add(True, left_out=_FLOAT32 * streams * h * streams * (streams + 2))
        sums.add(is_replayed, row=row, routed=_routed_row(c))
    return ModelWork(layers=sums.layers(), head=_BF16 * h * c["vocab_size"])


def _v4(raw: Mapping[str, Any]) -> ModelWork:
    c = raw
    h, width, index, top = c["hidden_size"], c["head_dim"], c["index_head_dim"], c["index_topk"]
    rope, packed = c["qk_rope_head_dim"], bool(raw.get("quantization_config"))
    plain = width - rope
    entry_bytes = -(-(plain + 2 * rope + -(-plain // 64)) // 8) * 8 if packed else 2 * width
    key_bytes = index + 4 if packed else 2 * index
    pair, index_pair = _attention_pair(c), _FP8 * c["index_n_heads"] * index
    window = Visits(flops=pair, entry_bytes=entry_bytes, cap=c["sliding_window"], is_window=True)
    sums = _Sums()
    for ratio in c["compress_ratios"][: c["num_hidden_layers"]]:
        sums.visit(False, window)
        row = _common_row(c)
        if ratio == 4:  # overlapping groups, so both halves of keys and scores
            row += _BF16 * 2 * 2 * (width + index) * h + _index_row(c)
            sums.visit(False, Visits(flops=pair, entry_bytes=entry_bytes, ratio=ratio, cap=top))
            sums.visit(False, Visits(flops=index_pair, entry_bytes=key_bytes, ratio=ratio))
        elif ratio:
            row += _BF16 * 2 * width * h
            sums.visit(False, Visits(flops=pair, entry_bytes=entry_bytes, ratio=ratio))
        sums.add(False, row=row, routed=_routed_row(c))
    return ModelWork(layers=sums.layers(), head=_BF16 * h * c["vocab_size"])


def _llama(raw: Mapping[str, Any]) -> ModelWork:
    h, heads = raw["hidden_size"], raw["num_attention_heads"]
    kv_heads = raw.get("num_key_value_heads") or heads
    width = raw.get("head_dim") or h // heads
    row = _BF16 * h * (2 * heads * width + 2 * kv_heads * width + 3 * raw["intermediate_size"])
    visit = Visits(flops=_BF16 * 2 * heads * width, entry_bytes=2 * kv_heads * width * 2)
    num_layers = raw["num_hidden_layers"]
    layers = Layers(row=row * num_layers, visits=((num_layers, visit),))
    return ModelWork(layers=(layers,), head=_BF16 * h * raw["vocab_size"])


class _Sums:
    """Adds up layers: one group, or two where decoder replay is possible."""

    def __init__(self) -> None:
        self._rows: dict[bool, Counter[str]] = {}
        self._entries: Counter[tuple[bool, int, int]] = Counter()
        self._visits: Counter[tuple[bool, Visits]] = Counter()

    def add(self, is_replayed: bool, **flops: int) -> None:
        self._rows.setdefault(is_replayed, Counter()).update(flops)

    def entry(self, is_replayed: bool, ratio: int, flops: int) -> None:
        self._entries[is_replayed, ratio, flops] += 1

    def visit(self, is_replayed: bool, visit: Visits) -> None:
        self._visits[is_replayed, visit] += 1

    def layers(self) -> tuple[Layers, ...]:
        return tuple(
            Layers(
                is_replayed=side,
                entries=tuple(
                    (count, ratio, flops)
                    for (where, ratio, flops), count in self._entries.items()
                    if where is side
                ),
                visits=tuple(
                    (count, visit)
                    for (where, visit), count in self._visits.items()
                    if where is side
                ),
                **rows,
            )
            for side, rows in self._rows.items()
        )
