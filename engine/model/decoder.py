"""The whole model, read top to bottom: embed, layers, collapse, norm, head."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from disagg_kernels import Kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.handoff import KvLayout
from engine.kv_pool import KvPool
from engine.model.attention import Attention
from engine.model.config import LayerConfig, ModelConfig
from engine.model.context import serve_restore, start_restore
from engine.model.expert_rows import ExpertRows, expert_rows
from engine.model.experts import ExpertPlacement, ExpertShare
from engine.model.hyper_connections import HeadCollapse, HyperConnection
from engine.model.layers import StepCarry
from engine.model.moe import MIN_EXPERT_ROWS, MixtureOfExperts
from engine.model.weights import Weights, load_weights
from engine.parallel.dispatch import Dispatcher
from engine.parallel.experts import LoadWindow
from engine.parallel.rank_groups import RankGroups
from engine.parallel.rows import TaggedRows, ValueState
from engine.parallel.rows.modes import AgreedRows
from engine.parallel.rows.transitions import finished, reduce_own
from engine.step_inputs import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What every layer is built from."""

    weights: Weights
    config: ModelConfig
    layout: KvLayout
    placement: ExpertPlacement
    dispatcher: Dispatcher
    ops: Kernels
    quantisers: bool
    min_expert_rows: int
    row_multiple: int = ROW_MULTIPLE
    loads: LoadWindow | None = None
    groups: RankGroups = field(default_factory=RankGroups)


class DecoderLayer:
    """Attention and experts, each inside its hyper-connection."""

    def __init__(self, parts: ModelParts, layer: LayerConfig) -> None:
        weights, config, ops = parts.weights, parts.config, parts.ops
        prefix = f"layers.{layer.index}"
        self._ops = ops
        self._eps = config.rms_norm_eps
        self._hidden = config.hidden_size
        self._attn_tp = parts.groups.attn_tp
        self._attn_norm = weights.tensor(f"{prefix}.attn_norm.weight", (config.hidden_size,))
        self._ffn_norm = weights.tensor(f"{prefix}.ffn_norm.weight", (config.hidden_size,))
        self._attn_site = HyperConnection(weights, f"{prefix}.hc_attn", config, ops)
        self._ffn_site = HyperConnection(weights, f"{prefix}.hc_ffn", config, ops)
        self._attention = Attention(
            weights,
            f"{prefix}.attn",
            config,
            layer,
            parts.layout,
            ops,
            quantisers=parts.quantisers,
            groups=parts.groups,
        )
        self._experts = MixtureOfExperts(
            weights,
            f"{prefix}.ffn",
            config,
            layer,
            parts.placement,
            parts.dispatcher,
            ops,
            min_rows=parts.min_expert_rows,
            row_multiple=parts.row_multiple,
            loads=parts.loads,
            groups=parts.groups,
        )

    def __call__(
        self,
        streams: torch.Tensor,
        inputs: StepInputs,
        pool: KvPool,
        carry: StepCarry,
        step: ExpertRows,
    ) -> torch.Tensor:
        """[rows, n, d] to [rows, n, d]."""
        x, coefficients = self._attn_site.collapse(streams)
        x = self._ops.rms_norm(x, self._attn_norm, self._eps)
        y = self._all_heads(self._attention(x, inputs, pool, carry), step)
        streams = self._attn_site.expand(y, streams, coefficients)
        x, coefficients = self._ffn_site.collapse(streams)
        x = self._ops.rms_norm(x, self._ffn_norm, self._eps)
        y = self._experts(x, step)
        return self._ffn_site.expand(y, streams, coefficients)

    def _all_heads(self, y: torch.Tensor, step: ExpertRows) -> torch.Tensor:
        """The attention's output: a sum where ranks share the heads, over these ranks only."""
        if self._attn_tp.size == 1:
            return y
        addends = TaggedRows(
            values=y[: step.num_tokens],
            rows=step.own,
            states={self._attn_tp.name: ValueState.PART},
        )
        y[: step.num_tokens] = finished(reduce_own(addends, self._attn_tp), self._attn_tp)
        return y

    def adopt(self, placement: ExpertPlacement) -> None:
        """Changes which experts this rank holds; between two steps."""
        self._experts.adopt(placement)

    def serve(self, step: ExpertRows, *, is_cut: bool) -> None:
        """Takes part in every collective of the layer, without rows."""
        if is_cut:
            self._attention.serve()
        self._all_heads(torch.empty(0, self._hidden), step)
        self._experts.serve(step)


class Decoder:
    """A DeepSeek-V4 model of one rank: everything but the experts of other ranks."""

    def __init__(self, parts: ModelParts) -> None:
        weights, config, ops = parts.weights, parts.config, parts.ops
        self.config = config
        self.groups = parts.groups
        self._row_multiple = parts.row_multiple
        self._ops = ops
        vocab, d = config.vocab_size, config.hidden_size
        self._embedding = weights.tensor("embed.weight", (vocab, d))
        self._layers = [DecoderLayer(parts, layer) for layer in config.layers]
        self._collapse = HeadCollapse(weights, config, ops)
        self._norm = weights.tensor("norm.weight", (d,))
        self._head = weights.linear("head", vocab, d)
        share = ExpertShare.of(parts.groups, parts.dispatcher)
        weights.check_all_used(all_experts=share.num_ranks == 1)

    @classmethod
    def load(
        cls,
        directory: Path,
        config: ModelConfig,
        layout: KvLayout,
        dispatcher: Dispatcher,
        ops: Kernels,
        *,
        batch_invariant: bool = True,
        placement: ExpertPlacement | None = None,
        loads: LoadWindow | None = None,
        groups: RankGroups | None = None,
    ) -> "Decoder":
        """Loads a rank's part of a checkpoint directory.

        Args:
            directory, config: The checkpoint and its sizes.
            layout: How KV is laid out in pages and images.
            dispatcher: Carries rows to the ranks of their experts.
            ops: The kernels.
            batch_invariant: Whether a row's result may not depend on its neighbours.
            placement: Which slots hold which experts, equal on all ranks; None is one slot each.
            loads: Takes the choices of every step, if experts are to be moved by load.
            groups: Who shares rows and heads with this rank; None is nobody.

        Raises:
            CheckpointError: files or tensors that are missing, truncated or of another shape.
        """
        groups = groups or RankGroups()
        if placement is None:
            placement = ExpertPlacement(
                num_logical=config.n_routed_experts,
                num_ranks=ExpertShare.of(groups, dispatcher).num_ranks,
            )
        return cls(
            ModelParts(
                weights=load_weights(directory, config),
                config=config,
                layout=layout,
                placement=placement,
                dispatcher=dispatcher,
                ops=ops,
                quantisers=layout.quantisers,
                min_expert_rows=MIN_EXPERT_ROWS if batch_invariant else 1,
                row_multiple=ROW_MULTIPLE if batch_invariant else 1,
                loads=loads,
                groups=groups,
            )
        )

    def __call__(
        self, inputs: StepInputs, pool: KvPool, agreed: AgreedRows | None = None
    ) -> torch.Tensor:
        """Runs one step and takes its KV into the pool.

        Args:
            inputs: The step's tensors.
            pool: KV memory.
            agreed: Rows of all attention groups; path A needs it, the others do not read it.

        Returns:
            [num_samples, vocab] float32 logits of the rows that are sampled; all of them on every
            rank that shares the step's rows.

        Raises:
            ValueError: path A without agreed rows, or with others than this rank has.
            TagError: a sum over ranks was left out, or taken twice.
        """
        is_cut = inputs.reverse is not None
        step = self._expert_rows(inputs.token_ids, inputs.num_tokens, agreed, is_cut=is_cut)
        embedded = self._embedding.index_select(0, inputs.token_ids)
        streams = embedded.unsqueeze(1).repeat(1, self.config.hc_mult, 1)
        carry = StepCarry()
        for layer in self._layers:
            streams = layer(streams, inputs, pool, carry, step)
        if inputs.num_samples == 0:
            if is_cut:
                serve_restore(self.groups.cp, self.config.hidden_size)
            return embedded.new_empty(0, self.config.vocab_size)
        hidden = self._collapse(streams.index_select(0, inputs.sample_rows))
        hidden = self._ops.rms_norm(hidden, self._norm, self.config.rms_norm_eps)
        hidden = start_restore(hidden, self.groups.cp, inputs.sample_reverse).wait()
        logits: torch.Tensor = self._ops.linear(hidden, self._head)
        return logits[: inputs.num_samples]

    def adopt(self, placements: Sequence[ExpertPlacement]) -> None:
        """Changes the placement of every layer; between two steps, the same two on all ranks.

        Raises:
            CheckpointError: the checkpoint can no longer be read.
        """
        for layer, placement in zip(self._layers, placements, strict=True):
            layer.adopt(placement)

    def serve(self, agreed: AgreedRows | None = None, *, is_cut: bool = False) -> None:
        """Takes part in a step of the peers without rows: every collective, nothing else.

        Args:
            agreed: As of a step with rows.
            is_cut: Whether context ranks share the rows of steps of this kind.
        """
        step = self._expert_rows(torch.empty(0, dtype=torch.int64), 0, agreed, is_cut=is_cut)
        for layer in self._layers:
            layer.serve(step, is_cut=is_cut)
        if is_cut:
            serve_restore(self.groups.cp, self.config.hidden_size)

    def _expert_rows(
        self, token_ids: torch.Tensor, num_tokens: int, agreed: AgreedRows | None, *, is_cut: bool
    ) -> ExpertRows:
        return expert_rows(
            token_ids,
            num_tokens,
            self.groups,
            agreed,
            row_multiple=self._row_multiple,
            is_cut=is_cut,
        )
