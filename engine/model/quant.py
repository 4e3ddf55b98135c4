"""Where the model's own quantisers act on KV (model notes, section 11.1).

They belong to the trained model, but public float implementations leave them out; `kv_quantisers`
decides. Off, everything here is the identity.
"""

import torch

from disagg_kernels import Kernels
from engine.model.config import ModelConfig, ModelConfigError


class KvQuantiser:
    """Rounds window rows and compressed entries: FP8 on the unrotated channels.

    The rotated channels are kept in bfloat16 by the served formats, so they are rounded to it.
    """

    def __init__(self, config: ModelConfig, ops: Kernels, *, enabled: bool) -> None:
        self._ops = ops
        self._plain = config.head_dim - config.rope_head_dim
        self._enabled = enabled

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, head_dim] to the same, rounded."""
        if not self._enabled:
            return rows
        plain = self._ops.quantize_dequantize(rows[..., : self._plain], "fp8_64")
        rotated = rows[..., self._plain :].to(torch.bfloat16).to(rows.dtype)
        return torch.cat([plain, rotated], -1)


class IndexQuantiser(KvQuantiser):
    """Rounds indexer queries and keys: Hadamard rotation, then FP4.

    Raises:
        ModelConfigError: the quantiser acts and the width is no power of two.
    """

    def __init__(self, config: ModelConfig, ops: Kernels, *, enabled: bool) -> None:
        super().__init__(config, ops, enabled=enabled)
        width = config.index_head_dim
        if enabled and width & (width - 1):
            raise ModelConfigError(
                f"config.json: index_head_dim is {width}, but the rotation before the index "
                "quantiser wants a power of two; set model.kv_quantisers to off"
            )

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., index_head_dim] to the same, rotated and rounded."""
        if not self._enabled:
            return rows
        rotated: torch.Tensor = self._ops.hadamard(rows)
        rounded: torch.Tensor = self._ops.quantize_dequantize(rotated, "fp4_32")
        return rounded
