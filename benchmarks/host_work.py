"""Host work of a step beside the model, and what late scheduling hides of it.

Host work is all an engine step does outside the runner: vote, schedule, pages, plan, sampling,
events. Times are means over the measured steps, taken around the parts of a running engine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import engine.engine as engine_module
from benchmarks.environment import REPOSITORY, interleaved, median, ratio_of_pairs
from engine.build import build_engine
from engine.config import EngineRole, EngineSettings, ModelLimits
from engine.engine import LLMEngine
from engine.handoff import SequenceImage
from engine.plan import StepKind, StepPlan, StepResult
from engine.request import EngineRequest, SamplingParams, TokenOut

MODEL = REPOSITORY / "models" / "tiny-v4"
BATCHES = (1, 8, 64)
PROMPT_TOKENS = 128
MAX_TOKENS = 300
DEVICE_STEP_S = 0.005
VOCAB = 2048


class WaitingRunner:
    """Waits as long as a device would compute, without the interpreter lock, and knows no model."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._logits = torch.rand(max(BATCHES), VOCAB, generator=torch.Generator().manual_seed(0))

    def run(self, plan: StepPlan) -> StepResult:
        """Sleeps, then returns the same logits for every row."""
        if plan.kind is StepKind.DECODE:
            time.sleep(self._step_s)
        return StepResult(logits=self._logits[: plan.num_samples])

    def export_image(
        self, block_table: Sequence[int], state_slot: int, num_tokens: int, *, blocks: bool = True
    ) -> SequenceImage:
        """Not needed: nothing is preempted."""
        raise NotImplementedError

    def export_blocks(self, page_ids: Sequence[int]) -> list[bytes]:
        """Not needed: nothing is exported."""
        raise NotImplementedError

    def export_state(self, state_slot: int, num_tokens: int) -> bytes:
        """Not needed: nothing is exported."""
        raise NotImplementedError

    def import_image(
        self, image: SequenceImage, block_table: Sequence[int], state_slot: int
    ) -> None:
        """Not needed: nothing is imported."""
        raise NotImplementedError

    def reset_slot(self, state_slot: int) -> None:
        """There is no state."""


def settings(*, late: bool, batch: int = max(BATCHES)) -> EngineSettings:
    """Settings of an engine that takes a whole batch at once."""
    return EngineSettings(
        num_pages=(PROMPT_TOKENS + MAX_TOKENS + 64) // 32 * batch + 1,
        max_num_seqs=batch,
        max_num_batched_tokens=1024,
        late_scheduling=late,
    )


def model_engine(*, late: bool) -> LLMEngine:
    """An engine with the bundled model."""
    return build_engine(MODEL, settings(late=late)).engine


def waiting_engine(*, late: bool) -> LLMEngine:
    """An engine whose steps wait instead of computing."""
    chosen = EngineSettings(
        role=EngineRole.DECODE,
        block_tokens=32,
        num_pages=16 * max(BATCHES),
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=1024,
        late_scheduling=late,
    )
    return LLMEngine(
        settings=chosen,
        limits=ModelLimits(vocab_size=VOCAB, max_model_len=4096, eos_token_ids=(1,)),
        cache=chosen.cache_size(1),
        runner=WaitingRunner(DEVICE_STEP_S),
    )


class SteadyDecode:
    """Seconds of a decode step with a full batch, from one measurement to the next."""

    def __init__(
        self, engine: LLMEngine, batch: int, steps: int, *, prompt_tokens: int = PROMPT_TOKENS
    ) -> None:
        self._engine = engine
        self._batch = batch
        self._steps = steps
        self._prompt_tokens = prompt_tokens
        self._round = 0

    def __call__(self) -> float:
        """Fills the batch, measures, and empties it."""
        self.fill()
        begin = time.perf_counter()
        for _ in range(self._steps):
            self._engine.step()
        seconds = (time.perf_counter() - begin) / self._steps
        self.empty()
        return seconds

    def fill(self) -> None:
        """Steps until every sequence of the batch decodes."""
        rng = random.Random(self._batch)
        self._round += 1
        for idx in range(self._batch):
            prompt = tuple(rng.randrange(3, VOCAB) for _ in range(self._prompt_tokens))
            self._engine.add(
                EngineRequest(
                    request_id=f"{self._batch}-{self._round}-{idx}",
                    token_ids=prompt,
                    sampling=SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True),
                )
            )
        num_tokens = 0
        while num_tokens < self._batch:
            decision, events = self._engine.step()
            num_tokens = sum(isinstance(event, TokenOut) for event in events)
            num_tokens *= decision.step_kind is StepKind.DECODE

    def empty(self) -> None:
        """Aborts the batch and steps until nothing is left."""
        for idx in range(self._batch):
            self._engine.abort(f"{self._batch}-{self._round}-{idx}")
        while self._engine.has_work():
            self._engine.step()


class Stopwatch:
    """Adds up the time spent in functions of an object, which it replaces."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._undo: list[Callable[[], None]] = []

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Times `owner.name` as `part`; several functions may share a part."""
        function = getattr(owner, name)
        self.seconds.setdefault(part, 0.0)

        def timed(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[part] += time.perf_counter() - begin

        setattr(owner, name, timed)
        self._undo.append(lambda: setattr(owner, name, function))

    def stop(self) -> None:
        """Puts the functions back."""
        while self._undo:
            self._undo.pop()()


def measure_parts(engine: LLMEngine, batch: int, steps: int) -> dict[str, float]:
    """Means over steady decode steps of one rank without late scheduling.

    Returns:
        In microseconds: `vote` (demand and agreement), `schedule` (rows, pages), `plan`, `sample`,
        `report` (tokens, ends, events), `rest`, their sum `host_us`, `model_us` (the runner), of
        which `inputs_us` builds tensors from plans, and `host_share` of the whole step.
    """
    run = SteadyDecode(engine, batch, steps)
    run.fill()
    watch = Stopwatch()
    scheduler: Any = engine._scheduler
    runner: Any = engine._launcher._runner
    watch.watch("vote", scheduler, "demand")
    watch.watch("vote", engine._agreement.vote, "reduce_max")
    watch.watch("schedule", scheduler, "schedule")
    watch.watch("schedule", scheduler, "complete")
    watch.watch("plan", scheduler, "steps_of")
    watch.watch("sample", engine_module, "sample")
    watch.watch("report", engine, "_report")
    watch.watch("model_us", runner, "run")
    watch.watch("inputs_us", runner._inputs, "build")
    begin = time.perf_counter()
    for _ in range(steps):
        engine.step()
    step_us = 1e6 * (time.perf_counter() - begin) / steps
    watch.stop()
    run.empty()
    parts = {part: 1e6 * seconds / steps for part, seconds in watch.seconds.items()}
    model_us, inputs_us = parts.pop("model_us"), parts.pop("inputs_us")
    host_us = step_us - model_us
    parts["rest"] = host_us - sum(parts.values())
    return {
        **{part: round(value, 1) for part, value in parts.items()},
        "host_us": round(host_us, 1),
        "model_us": round(model_us, 1),
        "inputs_us": round(inputs_us, 1),
        "host_share": round(host_us / step_us, 4),
    }


def measure_late(
    make: Callable[..., LLMEngine], repetitions: int, steps: int, *, prompt_tokens: int
) -> dict[str, Any]:
    """Steps with late scheduling beside steps without, in turn, by batch.

    Returns:
        By batch: `off_step_ms` and `on_step_ms` (medians), `off_quickest_ms` and `on_quickest_ms`
        (which a busy machine moves least), and `gain`, 1 minus the median of the ratios of
        neighbouring measurements; negative when late scheduling is slower.
    """
    off, on = make(late=False), make(late=True)
    results = {}
    for batch in BATCHES:
        runs = interleaved(
            {
                "off": SteadyDecode(off, batch, steps, prompt_tokens=prompt_tokens),
                "on": SteadyDecode(on, batch, steps, prompt_tokens=prompt_tokens),
            },
            repetitions=repetitions,
        )
        results[str(batch)] = {
            "off_step_ms": round(1e3 * median(runs["off"]), 3),
            "on_step_ms": round(1e3 * median(runs["on"]), 3),
            "off_quickest_ms": round(1e3 * min(runs["off"]), 3),
            "on_quickest_ms": round(1e3 * min(runs["on"]), 3),
            "gain": round(1 - ratio_of_pairs(runs["on"], runs["off"]), 3),
        }
    return results


def measure(repetitions: int, steps: int) -> dict[str, Any]:
    """Returns `host` by batch (see `measure_parts`) and `late` (see `measure_late`).

    `late.model` runs the bundled model on this machine's processor, `late.waiting` a runner that
    waits as for a device, `device_step_ms` a step.
    """
    torch.set_num_threads(1)
    engine = model_engine(late=False)
    host = {str(batch): measure_parts(engine, batch, 2 * steps) for batch in BATCHES}
    return {
        "host": host,
        "late": {
            "model": measure_late(model_engine, repetitions, steps, prompt_tokens=PROMPT_TOKENS),
            "waiting": measure_late(waiting_engine, repetitions, steps, prompt_tokens=1),
            "device_step_ms": 1e3 * DEVICE_STEP_S,
        },
    }
