"""The lightning indexer: which compressed entries a row attends to (model notes, section 6.2).

While every row sees no more entries than the indexer may keep, all visible ones are selected and
nothing is scored; index keys are still produced, since later rows will need them.
"""

import torch

from disagg_kernels import Kernels
from disagg_kernels.attention import SINK_COLUMNS
from engine.handoff import LayerSlice
from engine.kv_pool import KvPool
from engine.model.compressor import Compressor
from engine.model.config import LayerConfig, ModelConfig
from engine.model.quant import IndexQuantiser
from engine.model.weights import Weights
from engine.step_inputs import NEG_INF, RatioInputs, Selection, StepInputs
from engine.step_rows import round_up

_HIDDEN, _SHOWN = torch.tensor(NEG_INF), torch.tensor(0.0)


class Indexer:
    """Index keys and selection of one CSA layer.

    Attributes:
        projection: [d, columns] part of the layer's input projection: raw rows of the index
            compressor, then one weight per index head.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        layer: LayerConfig,
        ops: Kernels,
        *,
        quantisers: bool,
    ) -> None:
        heads, width = config.index_n_heads, config.index_head_dim
        self._ops = ops
        self._heads = heads
        self._width = width
        self._topk = config.index_topk
        self._quantise = IndexQuantiser(config, ops, enabled=quantisers)
        self._wq_b = weights.linear(f"{prefix}.wq_b", heads * width, config.q_lora_rank)
        self.compressor = Compressor(
            weights,
            f"{prefix}.compressor",
            config,
            ops,
            self._quantise,
            width=width,
            ratio=layer.ratio,
            overlap=True,
        )
        weight = weights.linear(f"{prefix}.weights_proj", heads, config.hidden_size)
        # Both scales are powers of the sizes and belong to the weights, not to the scores.
        self.projection = torch.cat(
            [self.compressor.projection, weight * (width**-0.5 * heads**-0.5)], 1
        )

    def store(
        self,
        raw: torch.Tensor,
        inputs: StepInputs,
        shared: RatioInputs,
        pool: KvPool,
        part: LayerSlice,
    ) -> None:
        """Takes raw rows in and writes the index keys of all groups that close.

        Args:
            raw: [T, columns] rows of the whole step, the first part of this module's projection.
            inputs, shared: The step's tensors.
            pool: KV memory.
            part: Where this layer's index keys lie in a page.
        """
        self.compressor.step(
            raw,
            pool.index_rings[part.layer],
            inputs,
            shared,
            pool.index_rows,
            shared.entry_pages * pool.layout.index_rows
            + shared.entry_places
            + _first_key(pool, part),
        )

    def select(
        self,
        qr: torch.Tensor,
        weights: torch.Tensor,
        inputs: StepInputs,
        shared: RatioInputs,
        pool: KvPool,
        part: LayerSlice,
    ) -> Selection | None:
        """Returns each row's entries; the step's index keys have been stored.

        Args:
            qr: [rows, q_lora_rank] normed query latent.
            weights: [rows, heads] the last part of this module's projection.
            inputs, shared: The step's tensors.
            pool: KV memory.
            part: Where this layer's index keys lie in a page.
        """
        if shared.max_visible <= self._topk:
            return shared.everything
        query = self._ops.linear(qr, self._wq_b).view(-1, self._heads, self._width)
        self._ops.apply_rope(query, inputs.rotation_long)
        assert shared.key_table is not None
        scores = self._ops.index_logits(
            self._quantise(query),
            weights,
            self._ops.gather_rows(pool.index_rows, shared.key_table + _first_key(pool, part)),
            inputs.spans,
            shared.visible,
        )
        picks = self._ops.select_topk(scores, self._topk, round_up(self._topk, SINK_COLUMNS))
        mask = torch.where(picks < 0, _HIDDEN, _SHOWN)
        entry_rows = shared.entry_table[inputs.sequence_of_row[:, None], picks.clamp_(min=0)]
        return Selection(entry_rows=entry_rows, mask=mask)


def _first_key(pool: KvPool, part: LayerSlice) -> int:
    return pool.index_pages_at + (part.index_row or 0)
