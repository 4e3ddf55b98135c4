"""Steps of one sequence for tests of single modules: inputs, padding, a pool of their own."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from disagg_kernels import Kernels, select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.build import kv_layout
from engine.handoff import KvLayout, LayerSlice
from engine.input_batch import InputBuilder
from engine.kv_pool import KvPool
from engine.model.config import ModelConfig
from engine.model.rotary import RotaryTables
from engine.model.weights import Weights, load_weights
from engine.plan import SequenceStep, StepKind, StepPlan
from engine.step_inputs import StepInputs


@functools.cache
def _tables(directory: Path) -> RotaryTables:
    return RotaryTables(ModelConfig.load(directory))


@dataclass(frozen=True, kw_only=True)
class Part:
    """The step's share of the sequence: positions [begin, end) and the tensors for them."""

    begin: int
    end: int
    inputs: StepInputs

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """These positions of [S, ...], padded with zero rows as the step is."""
        part = x[self.begin : self.end]
        missing = x.new_zeros(self.inputs.num_rows - len(part), *x.shape[1:])
        return torch.cat([part, missing])


class Bench:
    """What a module of a checkpoint needs to be built and run alone: slot 2, pages from 3 on."""

    def __init__(self, directory: Path) -> None:
        self.layout: KvLayout = kv_layout(directory, kv_quantisers="off")
        self.config: ModelConfig = self.layout.config
        self.weights: Weights = load_weights(directory, self.config)
        self.ops: Kernels = select_kernels("cpu")
        self.pool = KvPool(self.layout, num_pages=24, num_slots=4, max_tokens=512)
        self._builder = InputBuilder(
            self.layout, self.pool, _tables(directory), row_multiple=ROW_MULTIPLE
        )

    def part_of(self, layer: int) -> LayerSlice:
        """Where a layer's entries lie."""
        return next(part for part in self.layout.slices if part.layer == layer)

    def table(self, num_tokens: int) -> tuple[int, ...]:
        """The sequence's pages."""
        return tuple(3 + i for i in range(-(-num_tokens // self.layout.block_tokens)))

    def parts(self, token_ids: list[int], chunk: int) -> Iterator[Part]:
        """Yields the steps that compute the tokens, `chunk` at a time."""
        for begin in range(0, len(token_ids), chunk):
            end = min(begin + chunk, len(token_ids))
            step = SequenceStep(
                request_id="bench",
                token_ids=tuple(token_ids[begin:end]),
                start=begin,
                block_table=self.table(end),
                state_slot=2,
                sample=True,
            )
            plan = StepPlan(kind=StepKind.PREFILL, step=0, sequences=(step,), is_placeholder=False)
            yield Part(begin=begin, end=end, inputs=self._builder.build(plan))

    def entries(self, layer: int, num_tokens: int, *, index: bool = False) -> torch.Tensor:
        """A layer's entries, or its index keys, as they lie in the pages."""
        part, pool = self.part_of(layer), self.pool
        found = []
        for page in self.table(num_tokens):
            if index:
                assert part.index_row is not None
                first = pool.index_pages_at + page * self.layout.index_rows + part.index_row
                found.append(pool.index_rows[first : first + part.entries])
            else:
                first = pool.pages_at + page * self.layout.entry_rows + part.entry_row
                found.append(pool.rows[first : first + part.entries])
        return torch.cat(found)[: num_tokens // part.ratio].clone()
