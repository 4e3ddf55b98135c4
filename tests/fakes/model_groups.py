"""Models whose ranks are threads: attention groups with batches of their own, step by step.

Every attention group prefills its prompts in chunks, all of them in one batch, and then decodes.
Groups run out of work at different times and serve their peers from then on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from disagg_kernels import select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.build import kv_layout
from engine.handoff import KvLayout
from engine.input_batch import InputBuilder
from engine.kv_pool import KvPool
from engine.model.decoder import Decoder
from engine.model.experts import ExpertPlacement
from engine.model.rotary import RotaryTables
from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.dispatch_format import DispatchFormat, formatted
from engine.parallel.experts import LoadWindow
from engine.parallel.layout import TensorFamily, TensorLayout
from engine.parallel.rank_groups import RankGroups
from engine.parallel.rows.modes import AgreedRows, choose_path
from engine.parallel.rows.modes import Path as RowPath
from engine.plan import SequenceStep, StepKind, StepPlan
from tests.fakes.row_groups import ThreadDispatcher, run_ranks

MAX_TOKENS = 1024


@dataclass(kw_only=True)
class Sequence_:
    """A prompt and what became of it."""

    prompt: list[int]
    wanted: int
    slot: int
    first_page: int
    computed: int = 0
    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)

    def step(self, chunk: int, layout: KvLayout) -> SequenceStep | None:
        """The next tokens to compute."""
        known = self.prompt + self.tokens
        if len(self.tokens) == self.wanted:
            return None
        end = min(self.computed + chunk, len(known))
        pages = -(-end // layout.block_tokens)
        return SequenceStep(
            request_id=str(self.slot),
            token_ids=tuple(known[self.computed : end]),
            start=self.computed,
            block_table=tuple(range(self.first_page, self.first_page + pages)),
            state_slot=self.slot,
            sample=end == len(known),
        )


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank saw.

    Args:
        part: its attention group.
        tokens, logits: per prompt of the group.
        counts: agreed rows, step by step.
        log: collectives of each group of ranks, in order.
        sent: rows of each dispatch.
        loads: [steps, layers, experts].
    """

    part: int
    tokens: list[list[int]]
    logits: list[torch.Tensor]
    counts: list[tuple[int, ...]]
    log: dict[str, list[tuple[str, int]]]
    sent: list[int]
    loads: Any


class GroupModel:
    """A checkpoint, loaded once per rank of a layout.

    Args:
        directory: of the checkpoint.
        layout: of the domain.
        min_redundant: replicas beyond one of each expert.
        form: what travels to experts.
    """

    def __init__(
        self,
        directory: Path,
        layout: TensorLayout,
        *,
        min_redundant: int = 0,
        form: DispatchFormat = DispatchFormat.FLOAT32,
    ) -> None:
        torch.set_num_threads(1)
        self.layout = layout
        self.path = choose_path(
            attn_dp=layout.attn_dp, attn_tp=layout.attn_tp, all_to_all=layout.all_to_all
        )
        self._directory = directory
        # As the golden answers were made.
        self._kv = kv_layout(directory, kv_quantisers="off")
        self._min_redundant = min_redundant
        self._form = form

    def run(
        self,
        prompts: Sequence[Sequence[list[int]]],
        steps: int,
        *,
        chunks: Sequence[int],
        forced: Sequence[Sequence[list[int]]] | None = None,
    ) -> list[RankResult]:
        """Continues the prompts of each attention group greedily; returns the ranks' results.

        Args:
            prompts: for each attention group.
            steps: tokens of each.
            chunks: prompt tokens a sequence may compute in a step, for each attention group.
            forced: what to go on with instead of the greedy tokens, to compare logits.
        """
        layout = self.layout
        partitions = {
            "attn_tp": layout.groups(TensorFamily.ATTN_TP),
            "domain": layout.groups(TensorFamily.TP),
            "counts": layout.groups(TensorFamily.TP),
            "ep": layout.groups(TensorFamily.TP),
        }

        def work(rank: int, **groups: Any) -> RankResult:
            part = layout.attention_view.coordinates(rank)["dp"]
            sequences = [
                Sequence_(prompt=prompt, wanted=steps, slot=1 + i, first_page=1 + 40 * i)
                for i, prompt in enumerate(prompts[part])
            ]
            return self._rank(
                part, groups, sequences, chunks[part], forced[part] if forced else None
            )

        return run_ranks(partitions, layout.tp, work)

    def _rank(
        self,
        part: int,
        groups: dict[str, Any],
        sequences: list[Sequence_],
        chunk: int,
        forced: Sequence[list[int]] | None,
    ) -> RankResult:
        config, num_groups = self._kv.config, self.layout.attn_dp
        dispatcher: Any = ThreadDispatcher(groups["ep"])
        num_ranks = self.layout.tp
        if self.path in (RowPath.A, RowPath.PLAIN):
            num_ranks = self.layout.moe_ep
            dispatcher = LocalDispatcher(
                DispatchShape(
                    hidden=config.hidden_size, top_k=config.num_experts_per_tok, max_tokens=1
                )
            )
        loads = LoadWindow(config.num_layers, config.n_routed_experts, window_steps=10_000)
        model = Decoder.load(
            self._directory,
            config,
            self._kv,
            formatted(dispatcher, self._form, config.hidden_size),
            select_kernels("cpu"),
            placement=ExpertPlacement(
                num_logical=config.n_routed_experts,
                num_ranks=num_ranks,
                min_redundant=self._min_redundant,
            ),
            loads=loads,
            groups=RankGroups(
                attn_tp=groups["attn_tp"],
                domain=groups["domain"],
                path=self.path,
                moe_ep=self.layout.moe_ep if num_ranks == self.layout.moe_ep else 1,
            ),
        )
        pool = KvPool(
            self._kv,
            num_pages=2 + 40 * max(len(sequences), 1),
            num_slots=2 + len(sequences),
            max_tokens=MAX_TOKENS,
        )
        builder = InputBuilder(self._kv, pool, RotaryTables(config), row_multiple=ROW_MULTIPLE)
        for sequence in sequences:
            pool.reset_slot(sequence.slot)
        counts: list[tuple[int, ...]] = []
        while True:
            parts = [step for s in sequences if (step := s.step(chunk, self._kv)) is not None]
            plan = StepPlan(
                kind=StepKind.PREFILL,
                step=len(counts),
                sequences=tuple(parts),
                is_placeholder=False,
            )
            extends = any(step.num_tokens > 1 for step in parts)
            votes = groups["counts"].all_gather(torch.tensor([[plan.num_tokens, int(extends)]]))
            agreed = AgreedRows(
                counts=tuple(votes[:: self.layout.attn_tp, 0].tolist()),
                has_extend=bool(votes[:, 1].any()),
            )
            if not any(agreed.counts):
                break
            assert len(agreed.counts) == num_groups
            counts.append(agreed.counts)
            loads.add_step()
            with torch.inference_mode():
                if plan.num_tokens == 0:
                    model.serve(agreed)
                    continue
                logits = model(builder.build(plan), pool, agreed)
            _advance(sequences, parts, logits, forced)
        return RankResult(
            part=part,
            tokens=[sequence.tokens for sequence in sequences],
            logits=[torch.stack(sequence.logits) for sequence in sequences],
            counts=counts,
            log={name: groups[name].log for name in ("attn_tp", "domain")},
            sent=getattr(dispatcher, "sent", []),
            loads=loads.counts(),
        )


def _advance(
    sequences: list[Sequence_],
    parts: list[SequenceStep],
    logits: torch.Tensor,
    forced: Sequence[list[int]] | None,
) -> None:
    rows = iter(logits)
    for step in parts:
        sequence = sequences[step.state_slot - 1]
        sequence.computed = step.end
        if not step.sample:
            continue
        row = next(rows)
        sequence.logits.append(row.clone())
        token = int(row.argmax())
        if forced is not None:
            token = forced[step.state_slot - 1][len(sequence.tokens)]
        sequence.tokens.append(token)
