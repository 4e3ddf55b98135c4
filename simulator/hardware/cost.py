"""How long a step takes: the slowest of arithmetic, memory and network, plus what nothing hides.

A step of a group of ranks that share experts is as slow as its slowest rank. Attention, router and
shared expert run where the tokens are; routed experts run on all ranks of the group, so their
arithmetic is spread, and a rank reads each expert slot that some token of the group chose.
Network traffic of experts hides behind arithmetic (two batches in flight); the all-reduce of
attention TP does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model.sizing.memory import plan_memory
from engine.model.sizing.sizes import ModelSizes
from engine.parallel.layout import ExpertSlots, Layout
from simulator.hardware.profiles import Hardware, ProfileError
from simulator.work.flops import ModelWork

_FP8_ROW, _BF16_ROW = 1, 2  # bytes of a number on the way to and from an expert
_KINDS_READ_SPARSELY = ("embeddings",)  # of a table, a step reads the rows it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens of one prompt in one step: `q` new ones, ending at position `k` of `prompt`."""

    q: int
    k: int
    prompt: int


class CostModel:
    """Times of one kind of engine; one rank is one engine unless attention TP joins several.

    Args:
        hardware: One rank.
        sizes, work: The model.
        ep: Ranks that share the experts and step together.
        attn_tp: Ranks that are one engine.
        expert_skew: Load of the busiest expert rank over the mean.
        replay_tokens: Rows kept by decoder replay; None when it is off.

    Raises:
        ProfileError: the weights do not fit, or the group is not possible.
    """

    def __init__(
        self,
        *,
        hardware: Hardware,
        sizes: ModelSizes,
        work: ModelWork,
        ep: int = 1,
        attn_tp: int = 1,
        expert_skew: float = 1.0,
        replay_tokens: int | None = None,
    ) -> None:
        if attn_tp > 1 and ep > 1:
            raise ProfileError(f"ep {ep} with attn_tp {attn_tp}: leave one of them at 1")
        if ep > 1 and not sizes.num_experts:
            raise ProfileError(f"ep {ep}, but the model has no routed experts: leave ep at 1")
        self.hardware, self.sizes, self.work = hardware, sizes, work
        self.ep, self.attn_tp, self.replay_tokens = ep, attn_tp, replay_tokens
        self._skew = expert_skew
        slots = None
        if sizes.num_experts:
            slots = ExpertSlots(num_logical=sizes.num_experts, ep=ep, min_redundant=int(ep > 1))
        plan = plan_memory(sizes, Layout(dp=ep, ep=ep, attn_tp=attn_tp), slots, hardware.gpu)
        if not plan.is_fitting:
            # Without experts more ranks hold the same weights each.
            ways = "ranks (ep) or attn_tp" if sizes.num_experts else "attn_tp"
            raise ProfileError(
                f"{hardware.name}: weights of {plan.weight_bytes / 1e9:.1f} GB a rank do not fit "
                f"in {plan.usable_bytes / 1e9:.1f} GB; raise {ways} in a topology file"
            )
        self._dense_bytes = sum(
            num_bytes
            for kind, num_bytes in plan.weights.items()
            if kind != "experts" and kind not in _KINDS_READ_SPARSELY
        )
        # The logits' half of the embeddings is read whole.
        self._dense_bytes += plan.weights.get("embeddings", 0) // 2
        self._experts_bytes = plan.weights.get("experts", 0)
        self.kv_capacity_tokens = int(plan.free_bytes * attn_tp // sizes.kv_bytes_per_token)
        self._free_bytes = plan.free_bytes * attn_tp
        self._flops_per_s = hardware.flops_per_s * attn_tp
        self._hbm_per_s = hardware.hbm_bytes_per_s * attn_tp
        self._overhead_s = sizes.num_layers * hardware.layer_overhead_us * 1e-6
        self.read_slope = (work.read_bytes(1_000_000) - work.read_bytes(900_000)) / 100_000
        self._hit_shares: dict[int, float] = {0: 0.0}
        self._row = work.decode(1, 1)
        self._exchange_bytes = self._bytes_to_experts()
        self._exchange_per_s = (
            hardware.nvlink_bytes_per_s
            if ep <= hardware.ranks_per_node
            else hardware.nic_bytes_per_s
        )

    @property
    def nic_bytes_per_s(self) -> float:
        """Network bandwidth of one engine, each direction."""
        return self.hardware.nic_bytes_per_s * self.attn_tp

    def max_running(self, context: int) -> int:
        """Sequences of that many tokens that fit an engine."""
        each = self.sizes.state_bytes_per_sequence + self.sizes.kv_bytes_per_token * context
        return max(1, int(self._free_bytes // each))

    def full_prefill_s(self, n_new: int, n_cached: int, chunk_tokens: int) -> float:
        """Seconds of a prompt on an engine whose peers are equally busy."""
        total, done = 0.0, 0
        while done < n_new:
            q = min(chunk_tokens, n_new - done)
            done += q
            work = self.work.prefill(
                q, n_cached + done, prompt=n_cached + n_new, keep=self.replay_tokens
            )
            total += self._step_s(work.own, work.routed, q, q * self.ep, n_cached + done - q)
        return total

    def prefill_step_s(self, ranks: Sequence[Sequence[Chunk]]) -> float:
        """Seconds of one step of a group.

        Args:
            ranks: Chunks of each rank; ranks without work may be left out.
        """
        own_most = routed = rows_all = rows_most = earlier_most = 0
        for chunks in ranks:
            own = rows = earlier = 0
            for chunk in chunks:
                work = self.work.prefill(
                    chunk.q, chunk.k, prompt=chunk.prompt, keep=self.replay_tokens
                )
                own += work.own
                routed += work.routed
                rows += chunk.q
                earlier += chunk.k - chunk.q
            own_most, rows_most = max(own_most, own), max(rows_most, rows)
            earlier_most, rows_all = max(earlier_most, earlier), rows_all + rows
        return self._step_s(own_most, routed / self.ep, rows_most, rows_all, earlier_most)

    def decode_step_s(self, rows: float, read_bytes: float, rows_all: int) -> float:
        """Seconds of one decode step of a rank.

        Args:
            rows: Sequences of the rank.
            read_bytes: KV bytes that they read.
            rows_all: Sequences of the whole group.
        """
        skew = self._skew if self.ep > 1 else 1.0
        experts = self._row.routed * rows_all / self.ep * skew
        # Attention arithmetic follows the bytes read; decode is far from that roof, so it is left
        # to the memory term.
        arithmetic = (self._row.own * rows + experts) / self._flops_per_s
        memory = (self._weight_bytes(rows_all) + read_bytes) / self._hbm_per_s
        return max(arithmetic, memory, self._exchange_s(rows)) + self._unhidden_s(rows)

    def handoff_bytes(self, tokens: int) -> float:
        """KV and state of a prompt on the way to decode."""
        return self.sizes.kv_bytes_per_token * tokens + self.sizes.state_bytes_per_sequence

    def _step_s(self, own: float, routed: float, rows: int, rows_all: int, earlier: int) -> float:
        """Seconds of a prefill step.

        Args:
            own, rows, earlier: FLOPs, rows and earlier tokens of the slowest rank.
            routed: FLOPs of a rank's experts, on average.
            rows_all: Rows of the group.
        """
        skew = self._skew if self.ep > 1 else 1.0
        arithmetic = (own + routed * skew) / self._flops_per_s
        read = self.sizes.kv_bytes_per_token * earlier
        memory = (self._weight_bytes(rows_all) + read) / self._hbm_per_s
        return max(arithmetic, memory, self._exchange_s(rows)) + self._unhidden_s(rows)

    def _weight_bytes(self, rows: int) -> float:
        """Weight bytes that a rank reads for a step of the group with that many rows.

        A slot is read when one of the choices fell on its expert: with E experts and top k, an
        expert is missed by all rows with probability (1 - k / E) ** rows.
        """
        if not self._experts_bytes:
            return float(self._dense_bytes * self.attn_tp)
        share = self._hit_shares.get(rows)
        if share is None:
            missed = 1.0 - self.sizes.top_k / self.sizes.num_experts
            share = self._hit_shares[rows] = 1.0 - missed**rows
        return self._dense_bytes + share * self._experts_bytes

    def _bytes_to_experts(self) -> float:
        """Bytes that a rank sends for one row through all layers, to experts and back."""
        if self.ep == 1:
            return 0.0
        # A row goes once to each rank that holds one of its choices.
        elsewhere = (self.ep - 1) * (1.0 - (1.0 - 1.0 / self.ep) ** self.sizes.top_k)
        row = self.sizes.hidden_size * (_FP8_ROW + _BF16_ROW)
        return elsewhere * row * self.sizes.num_moe_layers

    def _exchange_s(self, rows: float) -> float:
        return rows * self._exchange_bytes / self._exchange_per_s if self._exchange_bytes else 0.0

    def _unhidden_s(self, rows: float) -> float:
        """Launches, and the all-reduces of attention TP."""
        if self.attn_tp == 1:
            return self._overhead_s
        share = 2 * (self.attn_tp - 1) / self.attn_tp
        num_bytes = 2 * self.sizes.num_layers * rows * self.sizes.hidden_size * _BF16_ROW * share
        return self._overhead_s + num_bytes / self.hardware.nvlink_bytes_per_s
