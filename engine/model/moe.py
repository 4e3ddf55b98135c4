"""Routed experts and the shared expert of one layer (model notes, section 8).

Rows get to the experts in one of two ways. With dispatch (direct, path B) a row travels to the
ranks of its experts and comes back finished. Without (path A, plain) every rank runs its share of
the experts on all rows, and what it gets are addends.
"""

import torch

from disagg_kernels import Kernels
from engine.model.config import LayerConfig, ModelConfig
from engine.model.expert_rows import ExpertRows, extended, pad_rows
from engine.model.experts import ExpertPlacement, ExpertShare, RoutedExperts
from engine.model.router import Router, load_gate
from engine.model.weights import Weights
from engine.parallel.dispatch import Dispatcher
from engine.parallel.experts import LoadWindow
from engine.parallel.rank_groups import RankGroups
from engine.parallel.rows import RowSet, TaggedRows, ValueState
from engine.parallel.rows.modes import Path
from engine.parallel.rows.paths import cut_and_join, gather_and_reduce, share_and_sum
from engine.parallel.rows.transitions import finished

# Products with fewer rows round differently on some CPU libraries; see `disagg_kernels.testing`.
MIN_EXPERT_ROWS = 4


class MixtureOfExperts:
    """One layer's feed-forward part.

    Args:
        placement: Which slots hold which experts.
        dispatcher: Carries rows where the groups' path dispatches.
        min_rows: Rows of the smallest product of an expert.
        row_multiple: Row counts of all other products are multiples of it.
        loads: Takes the choices: with dispatch those of this rank's rows, without those of all.
        groups: Who shares rows and experts with this rank; None is nobody.
    """

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
        row_multiple: int = 1,
        loads: LoadWindow | None = None,
        groups: RankGroups | None = None,
    ) -> None:
        d, shared = config.hidden_size, config.n_shared_experts * config.moe_intermediate_size
        self._ops = ops
        self._config = config
        self._row_multiple = row_multiple
        self._layer = layer.index
        self._loads = loads
        self._groups = groups or RankGroups()
        self._router = Router(weights, prefix, config, layer, ops)
        share = ExpertShare.of(self._groups, dispatcher)
        self._routed = RoutedExperts(
            weights, f"{prefix}.experts", config, share, placement, dispatcher, ops, min_rows
        )
        self._splits = [config.n_routed_experts, 2 * shared]
        self._gate = load_gate(weights, prefix, config)
        self._w_in = torch.cat(
            [
                weights.linear(f"{prefix}.shared_experts.w1", shared, d),
                weights.linear(f"{prefix}.shared_experts.w3", shared, d),
            ],
            1,
        )
        if share.is_dispatched:
            # Router and shared expert read the same rows: one product.
            self._w_in = torch.cat([self._gate, self._w_in], 1)
            self._gate = self._w_in[:, : config.n_routed_experts]
        self._shared_down = weights.linear(f"{prefix}.shared_experts.w2", d, shared)

    def adopt(self, placement: ExpertPlacement) -> None:
        """Loads this rank's experts of a placement and routes by it; between two steps."""
        self._routed.adopt(placement)

    def __call__(self, x: torch.Tensor, step: ExpertRows) -> torch.Tensor:
        """Returns the sublayer's output, finished on every rank; a collective.

        Args:
            x: [rows, d] normed input, finished; padding rows reach no routed expert.
            step: Which rows these are.

        Returns:
            [rows, d].

        Raises:
            TagError: a sum was left out, or taken twice.
        """
        groups = self._groups
        if groups.path is Path.DIRECT and step.inner is None:
            return self._dispatched(x, step.token_ids, step.num_tokens)
        own = TaggedRows(
            values=extended(x[: step.num_tokens], step.brought.num_rows),
            rows=step.brought,
            states={group.name: ValueState.REP for group in (groups.attn_tp, groups.cp)},
        )
        result = finished(self._along_path(own, step), groups.attn_tp, groups.domain)
        return extended(result[: step.num_tokens], len(x))

    def serve(self, step: ExpertRows) -> None:
        """Takes part without rows of its own: a placeholder's part."""
        self(torch.empty(0, self._config.hidden_size), step)

    def _along_path(self, own: TaggedRows, step: ExpertRows) -> TaggedRows:
        groups = self._groups

        def chunk(values: torch.Tensor, rows: RowSet) -> torch.Tensor:
            padded = pad_rows(values, self._row_multiple)
            return self._dispatched(padded, step.token_ids, rows.num_rows)[: rows.num_rows]

        def share(values: torch.Tensor, rows: RowSet) -> torch.Tensor:
            del rows  # The step knows them.
            return self._addends(values, step)

        if step.inner is not None:
            return cut_and_join(own, step.inner, chunk)
        if groups.path is Path.PLAIN:
            return share_and_sum(own, groups.domain, share, shared=self._shared)
        assert step.agreed is not None
        return gather_and_reduce(
            own,
            groups.attn_tp,
            groups.domain,
            share,
            agreed=step.agreed,
            combine=step.combine,
            shared=self._shared,
        )

    def _dispatched(self, x: torch.Tensor, token_ids: torch.Tensor, count: int) -> torch.Tensor:
        """Finished results of the first `count` rows, of the others those of the shared expert."""
        logits, gate_up = self._ops.linear(x, self._w_in).split(self._splits, 1)
        ids, weights = self._router.choose(logits, token_ids)
        self._count(ids[:count])
        result = self._down(gate_up)
        result[:count] += self._routed(x[:count], ids[:count], weights[:count]).sum(1)
        return result

    def _addends(self, values: torch.Tensor, step: ExpertRows) -> torch.Tensor:
        """This rank's part of the results of all rows; its sum over the ranks is the result."""
        count = len(values)
        logits = self._ops.linear(pad_rows(values, self._row_multiple), self._gate)
        ids, weights = self._router.choose(logits, step.token_ids)
        if step.is_real is not None:
            ids = ids.masked_fill(~step.is_real.unsqueeze(1), -1)
        self._count(ids[:count])
        return self._routed(values, ids[:count], weights[:count]).sum(1)

    def _shared(self, values: torch.Tensor) -> torch.Tensor:
        """The shared expert alone."""
        padded = pad_rows(values, self._row_multiple)
        return self._down(self._ops.linear(padded, self._w_in))[: len(values)]

    def _down(self, gate_up: torch.Tensor) -> torch.Tensor:
        hidden = self._ops.swiglu(gate_up, None, self._config.swiglu_limit)
        result: torch.Tensor = self._ops.linear(hidden, self._shared_down)
        return result

    def _count(self, ids: torch.Tensor) -> None:
        if self._loads is not None:
            self._loads.add(self._layer, ids.numpy())
