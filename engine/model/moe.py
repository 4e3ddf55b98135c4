"""Router, routed experts and the shared expert of one layer (model notes, section 8)."""

import torch

from disagg_kernels import Kernels
from engine.input_batch import StepInputs
from engine.model.config import LayerConfig, ModelConfig
from engine.model.experts import ExpertPlacement
from engine.model.weights import Weights
from engine.parallel.dispatch import Dispatcher
from engine.parallel.experts import LoadWindow

# Products with fewer rows round differently on some CPU libraries; see `disagg_kernels.testing`.
MIN_EXPERT_ROWS = 4


class MixtureOfExperts:
    """One layer's feed-forward part; routed rows travel to the rank that holds their expert."""

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        layer: LayerConfig,
        placement: ExpertPlacement,
        dispatcher: Dispatcher,
        ops: Kernels,
        *,
        min_rows: int,
        loads: LoadWindow | None = None,
    ) -> None:
        d, width = config.hidden_size, config.moe_intermediate_size
        self._ops = ops
        self._min_rows = min_rows
        self._config = config
        self._weights = weights
        self._prefix = prefix
        self._layer = layer.index
        self._loads = loads
        self._dispatcher = dispatcher
        self._forced: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        gate = weights.linear(f"{prefix}.gate", config.n_routed_experts, d)
        if config.gate_temperature != 1.0:
            gate /= config.gate_temperature
        if layer.hash_routed:
            shape = (config.vocab_size, config.num_experts_per_tok)
            table = weights.integers(f"{prefix}.gate.tid2eid", shape, config.n_routed_experts)
            # Choices are handled in ascending order of experts everywhere.
            self._forced = table.sort(1).values
        else:
            self._bias = weights.tensor(f"{prefix}.gate.bias", (config.n_routed_experts,))
        self.adopt(placement)
        shared = config.n_shared_experts * width
        # Router and shared expert read the same rows: one product.
        self._w_in = torch.cat(
            [
                gate,
                weights.linear(f"{prefix}.shared_experts.w1", shared, d),
                weights.linear(f"{prefix}.shared_experts.w3", shared, d),
            ],
            1,
        ).contiguous()
        self._splits = [config.n_routed_experts, 2 * shared]
        self._shared_down = weights.linear(f"{prefix}.shared_experts.w2", d, shared)

    def adopt(self, placement: ExpertPlacement) -> None:
        """Loads this rank's experts of a placement and routes by it; between two steps."""
        self._gate_up, self._down = self._weights.experts(
            f"{self._prefix}.experts", placement.local_experts(self._dispatcher.rank)
        )
        self._placement = placement

    def __call__(self, x: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        """Returns the sublayer's output.

        Args:
            x: [rows, d] normed input; padding rows reach no routed expert.
            inputs: The step's tensors.

        Returns:
            [rows, d].
        """
        ops, config = self._ops, self._config
        forced = None
        if self._forced is not None:
            forced = self._forced.index_select(0, inputs.token_ids)
        logits, gate_up = ops.linear(x, self._w_in).split(self._splits, 1)
        ids, weights = ops.route(
            logits,
            self._bias,
            forced,
            top_k=config.num_experts_per_tok,
            scale=config.routed_scaling_factor,
        )
        count = inputs.num_tokens
        if self._loads is not None:
            self._loads.add(self._layer, ids[:count].numpy())
        hidden = ops.swiglu(gate_up, None, config.swiglu_limit)
        result: torch.Tensor = ops.linear(hidden, self._shared_down)
        chosen = self._routed(
            x[:count], self._placement.slots(ids[:count], self._dispatcher.rank), weights[:count]
        )
        result[:count] += chosen.sum(1)
        return result

    def serve(self) -> None:
        """Runs this rank's experts for its peers, without rows of its own: a placeholder's part."""
        config = self._config
        self._routed(
            torch.empty(0, config.hidden_size),
            torch.empty(0, config.num_experts_per_tok, dtype=torch.int64),
            torch.empty(0, config.num_experts_per_tok),
        )

    def _routed(self, x: torch.Tensor, slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Rows, their slots and weights to the results of the chosen experts, [tokens, k, d]."""
        sent = self._dispatcher.dispatch(x, slots, weights, self._placement.slots_per_rank)
        outputs = self._ops.grouped_experts(
            sent.rows,
            sent.row_weights,
            sent.local_slots,
            self._gate_up,
            self._down,
            self._config.swiglu_limit,
            self._min_rows,
        )
        return self._dispatcher.combine(outputs, sent.handle)
