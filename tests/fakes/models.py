"""Real models for tests: runners of the bundled checkpoints, and plans for one sequence at a time.

Weights are loaded once per process and shared by all runners of a checkpoint; pools are not.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from disagg_kernels import select_kernels
from disagg_kernels.reference.dense import ROW_MULTIPLE
from engine.build import kv_layout
from engine.handoff import KvLayout, SequenceImage
from engine.kv_pool import KvPool
from engine.model.decoder import Decoder
from engine.model_runner import ModelRunner
from engine.parallel.dispatch_format import DispatchFormat, formatted
from engine.parallel.ports import RankContext, open_ports
from engine.plan import SequenceStep, StepKind, StepPlan

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "models" / "tiny-v4"
GOLDEN = REPOSITORY / "tests" / "golden" / "data"
MAX_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint in memory."""

    directory: Path
    layout: KvLayout
    decoder: Decoder

    def runner(self, *, num_pages: int = 64, num_slots: int = 8) -> ModelRunner:
        """Returns a runner with a pool of its own."""
        pool = KvPool(self.layout, num_pages=num_pages, num_slots=num_slots, max_tokens=MAX_TOKENS)
        return ModelRunner(self.decoder, self.layout, pool, row_multiple=ROW_MULTIPLE)


@functools.cache
def load(
    directory: Path, kv_quantisers: str = "off", form: DispatchFormat = DispatchFormat.FLOAT32
) -> LoadedModel:
    """Loads a checkpoint directory once."""
    torch.set_num_threads(1)
    layout = kv_layout(directory, kv_quantisers=kv_quantisers)
    config = layout.config
    ports = open_ports(
        RankContext(),
        hidden=form.row_width(config.hidden_size),
        top_k=config.num_experts_per_tok,
        max_tokens=MAX_TOKENS,
        result_hidden=form.result_width(config.hidden_size),
    )
    dispatcher = formatted(ports.dispatcher, form, config.hidden_size)
    decoder = Decoder.load(directory, config, layout, dispatcher, select_kernels("cpu"))
    return LoadedModel(directory=directory, layout=layout, decoder=decoder)


def golden(directory: Path) -> dict[str, Any]:
    """Returns the parsed golden.json of a checkpoint."""
    parsed: dict[str, Any] = json.loads((directory / "golden.json").read_text(encoding="utf-8"))
    return parsed


class Solo:
    """One sequence that has a runner to itself: pages from 1 on, slot 1."""

    def __init__(self, model: LoadedModel, runner: ModelRunner | None = None) -> None:
        self.model = model
        self.runner = runner or model.runner()
        self.num_tokens = 0
        self.replay = (0, 0)
        self.runner.reset_slot(1)

    def feed(self, token_ids: list[int], *, chunk: int = MAX_TOKENS) -> torch.Tensor:
        """Computes tokens in chunks; returns the logits after the last, [vocab]."""
        logits = torch.empty(0)
        for begin in range(0, len(token_ids), chunk):
            part = token_ids[begin : begin + chunk]
            end = self.num_tokens + len(part)
            step = SequenceStep(
                request_id="solo",
                token_ids=tuple(part),
                start=self.num_tokens,
                block_table=self.table(end),
                state_slot=1,
                sample=begin + len(part) == len(token_ids),
                window_start=self.replay[0],
                stored_tokens=self.replay[1],
            )
            plan = StepPlan(kind=StepKind.PREFILL, step=0, sequences=(step,), is_placeholder=False)
            result = self.runner.run(plan)
            self.num_tokens = end
            if step.sample:
                logits = result.logits[0]
        return logits

    def greedy(self, token_ids: list[int], steps: int, *, chunk: int = MAX_TOKENS) -> list[int]:
        """Returns the greedy continuation."""
        logits = self.feed(token_ids, chunk=chunk)
        out = [int(logits.argmax())]
        while len(out) < steps:
            out.append(int(self.feed(out[-1:]).argmax()))
        return out

    def table(self, num_tokens: int) -> tuple[int, ...]:
        """Pages that cover so many tokens."""
        return tuple(range(1, 1 - (-num_tokens // self.model.layout.block_tokens)))

    def image(self) -> SequenceImage:
        """Copies the sequence out."""
        return self.runner.export_image(self.table(self.num_tokens), 1, self.num_tokens)

    def resume(self, image: SequenceImage) -> None:
        """Goes on from an image."""
        self.runner.import_image(image, self.table(image.num_tokens), 1)
        self.num_tokens = image.state_tokens
        if image.replay_from is not None:
            self.replay = (image.replay_from, image.num_tokens)
