"""What one rank of a layout holds, and whether it fits a GPU. Pure arithmetic.

Attention, router and shared expert are on every rank; heads and dense layers divide by attention
TP; routed experts by slots. Row tables stay in host memory. A latent KV is whole on every rank of
an engine. Draft stages are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.model.sizing.catalog import Gpu
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.layout import ExpertSlots, Layout, TableShards

# Share of device memory that weights and KV may take; the rest is for activations and libraries.
UTILISATION = 0.9
_SHARED_BY_ATTENTION_TP = ("heads", "mlp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of one rank.

    Args:
        weights: Device bytes by kind of weight; `experts` are the routed ones with their scales.
        host_table_bytes: This rank's part of the row tables, in host memory.
        usable_bytes: Device bytes that weights and KV may take.
        kv_bytes_per_token, state_bytes_per_sequence: What requests add.
    """

    weights: Mapping[str, int]
    host_table_bytes: int
    usable_bytes: int
    kv_bytes_per_token: float
    state_bytes_per_sequence: int

    @property
    def weight_bytes(self) -> int:
        """Device bytes of all weights."""
        return sum(self.weights.values())

    @property
    def free_bytes(self) -> int:
        """What is left for KV; negative when the weights alone do not fit."""
        return self.usable_bytes - self.weight_bytes

    @property
    def is_fitting(self) -> bool:
        """Whether the weights and one sequence of one token fit."""
        return self.free_bytes >= self.state_bytes_per_sequence + self.kv_bytes_per_token

    @property
    def binds(self) -> str:
        """What decides: the KV pool while the weights fit, else the largest kind of weight."""
        if self.is_fitting:
            return "kv"
        return max(self.weights, key=lambda kind: self.weights[kind])

    def max_sequences(self, tokens: int) -> int:
        """Sequences of `tokens` tokens that fit at once."""
        each = self.state_bytes_per_sequence + self.kv_bytes_per_token * tokens
        return max(0, int(self.free_bytes // each))


def plan_memory(
    sizes: ModelSizes, layout: Layout, slots: ExpertSlots | None, gpu: Gpu
) -> MemoryPlan:
    """Adds up one rank's memory.

    Args:
        sizes: The model.
        layout: A valid layout.
        slots: Slots of a layer; None for a model without routed experts.
        gpu: Where it should fit.
    """
    weights = {
        kind: -(-part.num_bytes // layout.attn_tp)
        if kind in _SHARED_BY_ATTENTION_TP
        else part.num_bytes
        for kind, part in sizes.parts.items()
    }
    if slots is not None:
        weights["experts"] = sizes.num_moe_layers * slots.bytes_per_rank(sizes.expert_bytes)
    tables = 0
    if sizes.engram is not None:
        tables = sum(
            TableShards(num_rows=rows, enp=layout.enp).bytes_per_rank(sizes.engram.row_bytes)
            for rows in sizes.engram.rows
        )
    return MemoryPlan(
        weights=weights,
        host_table_bytes=tables,
        usable_bytes=int(gpu.memory_bytes * UTILISATION),
        kv_bytes_per_token=sizes.kv_bytes_per_token / (layout.attn_tp if sizes.has_kv_heads else 1),
        state_bytes_per_sequence=sizes.state_bytes_per_sequence,
    )
