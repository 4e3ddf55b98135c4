"""Which experts a row goes to (model notes, section 8)."""

import torch

from disagg_kernels import Kernels
from engine.model.config import LayerConfig, ModelConfig
from engine.model.weights import Weights


def load_gate(weights: Weights, prefix: str, config: ModelConfig) -> torch.Tensor:
    """Returns the weight that gives a row's scores, [d, experts]."""
    gate = weights.linear(f"{prefix}.gate", config.n_routed_experts, config.hidden_size)
    if config.gate_temperature != 1.0:
        gate /= config.gate_temperature
    return gate


class Router:
    """Chooses by the row's token in the first layers, by its scores in the others."""

    def __init__(
        self, weights: Weights, prefix: str, config: ModelConfig, layer: LayerConfig, ops: Kernels
    ) -> None:
        self._ops = ops
        self._top_k = config.num_experts_per_tok
        self._scale = config.routed_scaling_factor
        self._forced: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        if layer.hash_routed:
            shape = (config.vocab_size, config.num_experts_per_tok)
            table = weights.integers(f"{prefix}.gate.tid2eid", shape, config.n_routed_experts)
            # Choices are handled in ascending order of experts everywhere.
            self._forced = table.sort(1).values
        else:
            self._bias = weights.tensor(f"{prefix}.gate.bias", (config.n_routed_experts,))

    def choose(
        self, logits: torch.Tensor, token_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns experts, ascending, and weights of each row, both [rows, k].

        Args:
            logits: [rows, experts].
            token_ids: [rows] int64.
        """
        forced = None
        if self._forced is not None:
            forced = self._forced.index_select(0, token_ids)
        chosen: tuple[torch.Tensor, torch.Tensor] = self._ops.route(
            logits, self._bias, forced, top_k=self._top_k, scale=self._scale
        )
        return chosen
