"""Context ranks that are threads: real models of one checkpoint share the rows of each step."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from disagg_kernels import select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.handoff import SequenceImage
from engine.kv_pool import KvPool
from engine.model.decoder import Decoder
from engine.model_runner import ModelRunner
from engine.parallel.dispatch import Dispatched, DispatchShape, LocalDispatcher
from engine.parallel.experts import LoadWindow
from engine.parallel.rank_groups import RankGroups
from engine.plan import SequenceStep, StepKind, StepPlan, StepResult
from tests.fakes.models import MAX_TOKENS, load
from tests.fakes.row_groups import ThreadGroup, run_ranks


class RelayGroup:
    """The group a model was built with; `target` does the work of the run that is going on."""

    name = "cp"

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.target: ThreadGroup | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


class CountingDispatcher(LocalDispatcher):
    """Notes the rows it was given, call by call."""

    def __init__(self, shape: DispatchShape) -> None:
        super().__init__(shape)
        self.rows: list[torch.Tensor] = []

    def dispatch(
        self, rows: torch.Tensor, slot_ids: torch.Tensor, weights: torch.Tensor, per_rank: int
    ) -> Dispatched:
        self.rows.append(rows.clone())
        return super().dispatch(rows, slot_ids, weights, per_rank)


class ContextRanks:
    """All ranks of one engine, each with a model and a pool of its own."""

    def __init__(self, directory: Path, cp: int, kv_quantisers: str = "off") -> None:
        self.layout = load(directory, kv_quantisers).layout
        config = self.layout.config
        shape = DispatchShape(
            hidden=config.hidden_size, top_k=config.num_experts_per_tok, max_tokens=MAX_TOKENS
        )
        self.relays = [RelayGroup(rank, cp) for rank in range(cp)]
        self.dispatchers = [CountingDispatcher(shape) for _ in range(cp)]
        self.loads = [LoadWindow(config.num_layers, config.n_routed_experts) for _ in range(cp)]
        self.decoders = [
            Decoder.load(
                directory,
                config,
                self.layout,
                dispatcher,
                select_kernels("cpu"),
                groups=RankGroups(cp=relay),
                loads=loads,
            )
            for relay, dispatcher, loads in zip(
                self.relays, self.dispatchers, self.loads, strict=True
            )
        ]
        self.clear()

    def clear(self) -> None:
        """Gives every rank an empty pool and forgets what was counted."""
        self.logs: list[list[tuple[str, int]]] = []
        self.runners = []
        for decoder, dispatcher in zip(self.decoders, self.dispatchers, strict=True):
            dispatcher.rows.clear()
            pool = KvPool(self.layout, num_pages=64, num_slots=8, max_tokens=MAX_TOKENS)
            self.runners.append(ModelRunner(decoder, self.layout, pool, row_multiple=ROW_MULTIPLE))

    def run(self, plan: StepPlan) -> list[StepResult]:
        """Runs a step on all ranks; results in rank order."""

        def work(rank: int, cp: ThreadGroup) -> StepResult:
            self.relays[rank].target = cp
            self.loads[rank].add_step()
            return self.runners[rank].run(plan)

        members = list(range(len(self.runners)))
        results = run_ranks({"cp": [members]}, len(members), work)
        targets = [relay.target for relay in self.relays]
        self.logs = [target.log for target in targets if target is not None]
        return results


@functools.cache
def context_ranks(directory: Path, cp: int, kv_quantisers: str = "off") -> ContextRanks:
    """Loads the ranks once; `clear` them before use."""
    return ContextRanks(directory, cp, kv_quantisers)


class Sequences:
    """Several sequences that advance by plans; pages of different ones alternate."""

    def __init__(self, tokens: Sequence[Sequence[int]], block_tokens: int) -> None:
        self.tokens = [list(found) for found in tokens]
        self.lengths = [0] * len(tokens)
        self._block_tokens = block_tokens

    def table(self, sequence: int) -> tuple[int, ...]:
        """Pages of what is computed so far."""
        count = -(-self.lengths[sequence] // self._block_tokens)
        return tuple(1 + sequence + len(self.lengths) * page for page in range(count))

    def plan(self, counts: Sequence[int], kind: StepKind = StepKind.PREFILL) -> StepPlan:
        """The next tokens of each sequence; all rows at an end are sampled."""
        steps = []
        for sequence, count in enumerate(counts):
            if not count:
                continue
            start = self.lengths[sequence]
            self.lengths[sequence] += count
            steps.append(
                SequenceStep(
                    request_id=str(sequence),
                    token_ids=tuple(self.tokens[sequence][start : start + count]),
                    start=start,
                    block_table=self.table(sequence),
                    state_slot=1 + sequence,
                    sample=sequence % 3 != 1,
                )
            )
        return StepPlan(kind=kind, step=0, sequences=tuple(steps), is_placeholder=not steps)

    def images(self, runner: ModelRunner) -> list[SequenceImage]:
        """What a runner holds of all of them."""
        return [
            runner.export_image(self.table(sequence), 1 + sequence, length)
            for sequence, length in enumerate(self.lengths)
        ]
