"""CSA and HCA compressors: raw rows in, complete entries out (model notes, sections 6.1 and 6.3).

A compressor keeps the raw (key, score) rows of the open group, for CSA also of the group before, in
a ring of its own per state slot. When a token closes a group, the group's rows are pooled, normed,
rotated to the position of the group's first own token, quantised if the model calls for it, and
written to the sequence's page.
"""

import torch

from disagg_kernels import Kernels
from engine.model.config import ModelConfig
from engine.model.quant import KvQuantiser
from engine.model.weights import Weights
from engine.step_inputs import RatioInputs, StepInputs


class Compressor:
    """One compressor: the layer's own, or the one inside its indexer.

    Attributes:
        projection: [d, columns] weight that gives the raw rows (keys, then scores).
        columns: Width of a raw row.
    """

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        ops: Kernels,
        quantiser: KvQuantiser,
        *,
        width: int,
        ratio: int,
        overlap: bool,
    ) -> None:
        parts = 2 if overlap else 1
        self._ops = ops
        self._eps = config.rms_norm_eps
        self._width = width
        self._overlap = overlap
        self._quantiser = quantiser
        self._norm = weights.tensor(f"{prefix}.norm.weight", (width,))
        ape = weights.tensor(f"{prefix}.ape", (ratio, parts * width))
        self._position_bias = ape.repeat(parts, 1)
        keys = weights.linear(f"{prefix}.wkv", parts * width, config.hidden_size)
        scores = weights.linear(f"{prefix}.wgate", parts * width, config.hidden_size)
        self.projection = torch.cat([keys, scores], 1)
        self.columns = 2 * parts * width

    def step(
        self,
        raw: torch.Tensor,
        ring: torch.Tensor,
        inputs: StepInputs,
        shared: RatioInputs,
        target: torch.Tensor,
        target_rows: torch.Tensor,
    ) -> None:
        """Takes the step's raw rows in and writes the entries of all groups that close.

        Args:
            raw: [T, columns] raw rows of the whole step's tokens, padding behind them or none.
            ring: [slots * ring, columns] this compressor's ring.
            inputs, shared: The step's tensors.
            target: [*, width] view of the pool that takes entries.
            target_rows: [groups] rows of `target`.
        """
        source = ring
        if inputs.direct:
            ring.index_copy_(0, shared.ring_target, raw[: shared.ring_target.shape[0]])
        elif shared.num_groups:
            source = torch.cat([ring.index_select(0, shared.sequence_ring), raw])
        if shared.num_groups:
            target.index_copy_(0, target_rows, self._entries(source, shared))
        if not inputs.direct:
            ring.index_copy_(0, shared.ring_target, raw.index_select(0, shared.ring_source))

    def _entries(self, source: torch.Tensor, shared: RatioInputs) -> torch.Tensor:
        rows = self._ops.gather_rows(source, shared.group_rows)
        rows[..., self.columns // 2 :] += self._position_bias
        first = shared.first if self._overlap else None
        pooled = self._ops.compress(rows, width=self._width, overlap=self._overlap, first=first)
        entries = self._ops.rms_norm(pooled, self._norm, self._eps)
        self._ops.apply_rope(entries.unsqueeze(1), shared.group_rotation)
        return self._quantiser(entries)
