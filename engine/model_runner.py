"""Executes step plans: plan to tensors, tensors through the model, state in and out.

Runs on the engine thread only. All collectives of a step happen inside `run`.
"""

from collections.abc import Sequence

import torch

from engine.handoff import KvLayout, SequenceImage
from engine.input_batch import InputBuilder
from engine.kv_pool import KvPool
from engine.model.decoder import Decoder
from engine.model.rotary import RotaryTables
from engine.parallel.rows.modes import AgreedRows
from engine.plan import StepKind, StepPlan, StepResult


class ModelRunner:
    """The `Runner` of a real model."""

    def __init__(
        self, model: Decoder, layout: KvLayout, pool: KvPool, *, row_multiple: int
    ) -> None:
        self._model = model
        self._pool = pool
        self._inputs = InputBuilder(
            layout,
            pool,
            RotaryTables(model.config),
            row_multiple=row_multiple,
            cp=model.groups.cp.size,
            cp_rank=model.groups.cp.rank,
        )

    def run(self, plan: StepPlan) -> StepResult:
        """Runs one step; see `engine.plan.Runner`."""
        if plan.num_tokens > self._pool.max_tokens:
            raise ValueError(
                f"step {plan.step} has {plan.num_tokens} tokens, the pool was built for "
                f"{self._pool.max_tokens} (max_num_batched_tokens)"
            )
        with torch.inference_mode():
            agreed = self._agree(plan)
            if plan.num_tokens == 0:
                self._model.serve(agreed, is_cut=self._inputs.cuts(plan.kind))
                return StepResult(logits=torch.empty(0, self._model.config.vocab_size))
            inputs = self._inputs.build(plan)
            return StepResult(logits=self._model(inputs, self._pool, agreed))

    def _agree(self, plan: StepPlan) -> AgreedRows | None:
        """Rows of all attention groups, where rows of all meet on every rank; else None."""
        if not self._model.groups.gathers_rows:
            return None
        extends = plan.kind is StepKind.PREFILL and any(plan.group_rows)
        return AgreedRows(counts=plan.group_rows, has_extend=extends)

    def export_image(
        self, block_table: Sequence[int], state_slot: int, num_tokens: int, *, blocks: bool = True
    ) -> SequenceImage:
        """Copies a sequence's state out."""
        with torch.inference_mode():
            return self._pool.export_image(block_table, state_slot, num_tokens, blocks=blocks)

    def export_blocks(self, page_ids: Sequence[int]) -> list[bytes]:
        """Copies full blocks out."""
        with torch.inference_mode():
            return [self._pool.export_block(page) for page in page_ids]

    def export_state(self, state_slot: int, num_tokens: int) -> bytes:
        """Copies windows and compressor rows out."""
        with torch.inference_mode():
            return self._pool.export_state(state_slot, num_tokens)

    def import_image(
        self, image: SequenceImage, block_table: Sequence[int], state_slot: int
    ) -> None:
        """Copies a sequence's state in."""
        with torch.inference_mode():
            self._pool.reset_slot(state_slot)
            self._pool.import_image(image, block_table, state_slot)

    def reset_slot(self, state_slot: int) -> None:
        """Empties a slot."""
        with torch.inference_mode():
            self._pool.reset_slot(state_slot)
