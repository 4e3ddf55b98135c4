"""Manifold-constrained hyper-connections: the residual streams around a sublayer.

V4 use: the coefficients computed from the streams that enter a sublayer collapse the streams for
that same sublayer and expand its output. (V4.1 collapses with the coefficients of the site before;
its order of use joins here as a second class.)
"""

import torch

from disagg_kernels import Kernels
from engine.model.config import ModelConfig
from engine.model.weights import Weights


class HyperConnection:
    """One site: coefficients, collapse and expand."""

    def __init__(self, weights: Weights, prefix: str, config: ModelConfig, ops: Kernels) -> None:
        n, d = config.hc_mult, config.hidden_size
        rows = (2 + n) * n
        self._ops = ops
        self._config = config
        self._projection = weights.tensor(f"{prefix}_fn", (rows, n * d)).t().contiguous()
        self._base = weights.tensor(f"{prefix}_base", (rows,))
        scale = weights.tensor(f"{prefix}_scale", (3,))
        self._scale = scale.repeat_interleave(torch.tensor([n, n, n * n]), output_size=rows)

    def collapse(
        self, streams: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Returns the sublayer's input [rows, d] and what `expand` needs.

        Args:
            streams: [rows, n, d].
        """
        config = self._config
        pre, post, comb = self._ops.hc_pre(
            streams,
            self._projection,
            self._scale,
            self._base,
            rms_eps=config.rms_norm_eps,
            hc_eps=config.hc_eps,
            sinkhorn_iters=config.hc_sinkhorn_iters,
        )
        return self._ops.hc_mix(streams, pre), (post, comb)

    def expand(
        self,
        y: torch.Tensor,
        streams: torch.Tensor,
        coefficients: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Returns the streams after the sublayer, [rows, n, d]; `y` is its output [rows, d]."""
        post, comb = coefficients
        result: torch.Tensor = self._ops.hc_post(y, streams, post, comb)
        return result


class HeadCollapse:
    """V4's learned collapse of the streams before the final norm."""

    def __init__(self, weights: Weights, config: ModelConfig, ops: Kernels) -> None:
        n, d = config.hc_mult, config.hidden_size
        self._ops = ops
        self._config = config
        self._projection = weights.tensor("hc_head_fn", (n, n * d)).t().contiguous()
        self._base = weights.tensor("hc_head_base", (n,))
        self._scale = weights.tensor("hc_head_scale", (1,))

    def __call__(self, streams: torch.Tensor) -> torch.Tensor:
        """[rows, n, d] to [rows, d]."""
        result: torch.Tensor = self._ops.hc_head(
            streams,
            self._projection,
            self._scale,
            self._base,
            rms_eps=self._config.rms_norm_eps,
            hc_eps=self._config.hc_eps,
        )
        return result
