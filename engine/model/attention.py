"""Attention of one layer: query path, window, compressed entries, sink, grouped output.

One KV head: a KV row is key and value of all query heads. Its rotated channels carry the rotation
into the output, which is turned back by the query's position before the output projection.

Ranks that share the heads (attention TP) keep whole groups of the output projection with their
heads, so that nothing is exchanged before the last product: its results are addends. The KV row,
compressors and indexer are every rank's own.
"""

import torch

from disagg_kernels import Kernels
from disagg_kernels.attention import SINK_COLUMNS
from engine.handoff import KvLayout, LayerSlice
from engine.kv_pool import KvPool
from engine.model.compressor import Compressor
from engine.model.config import LayerConfig, LayerKind, ModelConfig
from engine.model.context import serve_restore, start_restore
from engine.model.indexer import Indexer
from engine.model.layers import StepCarry
from engine.model.quant import KvQuantiser
from engine.model.weights import Share, Weights
from engine.parallel.errors import LayoutError
from engine.parallel.layout import AttentionShape
from engine.parallel.layout.checks import check_heads
from engine.parallel.rank_groups import RankGroups
from engine.step_inputs import Selection, StepInputs
from engine.step_rows import round_up


class Attention:
    """One layer's attention; see the module docstring.

    All projections of the layer's input (query latent, KV row, compressor rows, index weights) are
    one product. Under context parallelism KV and compressor rows of all ranks come together before
    they are stored, and the query is made while they travel.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        layer: LayerConfig,
        layout: KvLayout,
        ops: Kernels,
        *,
        quantisers: bool,
        groups: RankGroups | None = None,
    ) -> None:
        d, num_heads, width = config.hidden_size, config.num_attention_heads, config.head_dim
        self._groups = groups or RankGroups()
        heads = _heads_of(self._groups, config)
        self._ops = ops
        self._config = config
        self._layer = layer
        self._quantise = KvQuantiser(config, ops, enabled=quantisers)
        self._part: LayerSlice | None = next(
            (part for part in layout.slices if part.layer == layer.kv_source), None
        )
        self._q_norm = weights.tensor(f"{prefix}.q_norm.weight", (config.q_lora_rank,))
        self._kv_norm = weights.tensor(f"{prefix}.kv_norm.weight", (width,))
        self._wq_b = weights.linear(
            f"{prefix}.wq_b", num_heads * width, config.q_lora_rank, outputs=heads
        )
        sink = weights.tensor(f"{prefix}.attn_sink", (num_heads,))[heads.of(num_heads)]
        self._sink = torch.zeros(len(sink), SINK_COLUMNS)
        self._sink[:, 0] = sink
        self._load_output(weights, prefix, heads)
        projections = [
            weights.linear(f"{prefix}.wq_a", config.q_lora_rank, d),
            weights.linear(f"{prefix}.wkv", width, d),
        ]
        self._compressor: Compressor | None = None
        self._indexer: Indexer | None = None
        if layer.owns_kv:
            self._compressor = Compressor(
                weights,
                f"{prefix}.compressor",
                config,
                ops,
                self._quantise,
                width=width,
                ratio=layer.ratio,
                overlap=layer.kind is LayerKind.CSA,
            )
            projections.append(self._compressor.projection)
        if layer.owns_index:
            self._indexer = Indexer(
                weights, f"{prefix}.indexer", config, layer, ops, quantisers=quantisers
            )
            projections.append(self._indexer.projection)
        self._offsets = torch.empty(0, dtype=torch.int64)
        # Raw rows of both compressors stand side by side, so that one gather takes them.
        weight_columns = config.index_n_heads if self._indexer is not None else 0
        raw = sum(projection.shape[1] for projection in projections[2:]) - weight_columns
        self._splits = [config.q_lora_rank, width, raw, weight_columns]
        self._w_in = torch.cat(projections, 1).contiguous()

    def _load_output(self, weights: Weights, prefix: str, heads: Share) -> None:
        config = self._config
        groups, rank = config.o_groups, config.o_lora_rank
        inner = config.num_attention_heads * config.head_dim // groups
        wo_a = weights.tensor(f"{prefix}.wo_a.weight", (groups * rank, inner))
        wo_a = wo_a[heads.of(groups * rank)]
        self._wo_a = wo_a.view(groups // heads.size, rank, inner).mT.contiguous()
        self._wo_b = weights.linear(
            f"{prefix}.wo_b", config.hidden_size, groups * rank, inputs=heads
        )

    def __call__(
        self, x: torch.Tensor, inputs: StepInputs, pool: KvPool, carry: StepCarry
    ) -> torch.Tensor:
        """Returns the sublayer's output and takes the step's KV into the pool.

        Args:
            x: [rows, d] normed input.
            inputs: The step's tensors.
            pool: KV memory.
            carry: What earlier layers of this pass handed on.

        Returns:
            [rows, d]; an addend where ranks share the heads.
        """
        ops, config = self._ops, self._config
        rows = x.shape[0]
        rotation, back = inputs.rotation_window, inputs.rotation_window_back
        if self._layer.ratio:
            rotation, back = inputs.rotation_long, inputs.rotation_long_back
        latent, kv, raw, index_weights = ops.linear(x, self._w_in).split(self._splits, 1)
        cp, reverse = self._groups.cp, inputs.reverse
        raw_rows = start_restore(raw, cp, reverse) if self._compressor is not None else None
        kv = ops.rms_norm(kv, self._kv_norm, config.rms_norm_eps)
        ops.apply_rope(kv.unsqueeze(1), rotation)
        window_rows = start_restore(self._quantise(kv), cp, reverse)
        qr = ops.rms_norm(latent, self._q_norm, config.rms_norm_eps)
        query = ops.linear(qr, self._wq_b).view(rows, -1, config.head_dim)
        query = ops.rms_norm(query, None, config.rms_norm_eps)
        ops.apply_rope(query, rotation)
        # Both gathers end here: from now on every rank has the rows of the whole step.
        if raw_rows is not None:
            self._compress(raw_rows.wait(), inputs, pool)
        kv = window_rows.wait()
        window_at = self._layer.index * pool.window
        if inputs.direct:
            self._keep_window(kv, inputs, pool, window_at)
        else:
            pool.rows[pool.scratch_at : pool.scratch_at + kv.shape[0]] = kv
        selection = self._select(qr, index_weights, inputs, pool, carry)
        key_rows, mask = self._key_rows(inputs, pool, selection)
        out = ops.sparse_attention(
            query,
            pool.rows,
            key_rows,
            mask,
            self._sink_columns(key_rows.shape[1]),
            config.head_dim**-0.5,
        )
        if not inputs.direct:
            self._keep_window(kv, inputs, pool, window_at)
        ops.apply_rope(out, back)
        grouped = ops.group_linear(out.reshape(rows, len(self._wo_a), -1), self._wo_a)
        result: torch.Tensor = ops.linear(grouped.reshape(rows, -1), self._wo_b)
        return result

    def _sink_columns(self, columns: int) -> torch.Tensor:
        """The sink's bias for key lists of this length; grows and is kept."""
        if self._sink.shape[1] < columns:
            wider = torch.zeros(self._sink.shape[0], 2 * columns)
            wider[:, 0] = self._sink[:, 0]
            self._sink = wider
        return self._sink

    def _keep_window(
        self, kv: torch.Tensor, inputs: StepInputs, pool: KvPool, window_at: int
    ) -> None:
        kept = kv[: inputs.window_target.shape[0]]
        if not inputs.direct:
            kept = kv.index_select(0, inputs.window_source)
        pool.rows.index_copy_(0, inputs.window_target + window_at, kept)

    def serve(self) -> None:
        """Takes part in a step without rows that context ranks share: the gathers, nothing else."""
        _, width, raw, _ = self._splits
        if self._compressor is not None:
            serve_restore(self._groups.cp, raw)
        serve_restore(self._groups.cp, width)

    def _compress(self, raw: torch.Tensor, inputs: StepInputs, pool: KvPool) -> None:
        """Takes the raw rows of the whole step in: entries, and index keys where there are any."""
        part = self._part
        assert part is not None
        assert self._compressor is not None
        shared = inputs.ratios[part.ratio]
        first_entry = pool.pages_at + part.entry_row
        self._compressor.step(
            raw[:, : self._compressor.columns],
            pool.rings[part.layer],
            inputs,
            shared,
            pool.rows,
            shared.entry_pages * pool.layout.entry_rows + shared.entry_places + first_entry,
        )
        if self._indexer is not None:
            self._indexer.store(raw[:, self._compressor.columns :], inputs, shared, pool, part)

    def _select(
        self,
        qr: torch.Tensor,
        index_weights: torch.Tensor,
        inputs: StepInputs,
        pool: KvPool,
        carry: StepCarry,
    ) -> Selection | None:
        part = self._part
        if part is None:
            return None
        shared = inputs.ratios[part.ratio]
        if self._layer.kind is LayerKind.HCA:
            return shared.everything
        source = self._layer.index_source
        assert source is not None
        if self._indexer is not None:
            carry.selections[source] = self._indexer.select(
                qr, index_weights, inputs, shared, pool, part
            )
        return carry.selections[source]

    def _key_rows(
        self, inputs: StepInputs, pool: KvPool, selection: Selection | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The row list of this layer: the sink's zero rows, the window, the selected entries."""
        rows, mask = inputs.window_rows, inputs.window_mask
        if selection is not None:
            rows, mask = selection.behind_window(inputs)
        listed = rows + self._offsets_of(pool, rows.shape[1])
        if inputs.window_is_new is not None:
            columns = inputs.window_is_new.shape[1]
            window = torch.where(inputs.window_is_new, inputs.window_rows, listed[:, :columns])
            listed[:, :columns] = window
        return listed, mask

    def _offsets_of(self, pool: KvPool, columns: int) -> torch.Tensor:
        """This layer's offset of every column: none for the sink, then window, then entries."""
        if self._offsets.shape[0] < columns:
            begin = SINK_COLUMNS + round_up(pool.window, SINK_COLUMNS)
            first_entry = 0 if self._part is None else pool.pages_at + self._part.entry_row
            self._offsets = torch.full((max(2 * columns, begin),), first_entry)
            self._offsets[:begin] = 0
            self._offsets[SINK_COLUMNS : SINK_COLUMNS + pool.window] = (
                self._layer.index * pool.window
            )
        return self._offsets[:columns]


def _heads_of(groups: RankGroups, config: ModelConfig) -> Share:
    """This rank's part of the heads.

    Raises:
        LayoutError: the heads, or the groups of the output projection, do not divide.
    """
    attn_tp = groups.attn_tp
    shape = AttentionShape(num_heads=config.num_attention_heads, num_groups=config.o_groups)
    if violations := check_heads(attn_tp.size, shape):
        raise LayoutError(violations)
    return Share(rank=attn_tp.rank, size=attn_tp.size)
