"""Decode speed of one rank beside transformers' `generate`: same model, one thread each, one run.

    python -m benchmarks.engine --json [--repetitions 5] [--steps 32] [--parts peer host experts]

Prints one object on its last line; `--parts` leaves keys out:

    peer:
    decode: {batch: {ours_tok_s, peer_tok_s, ratio, ours_step_ms, peer_step_ms}}
        medians; a step is timed as the slope between a short and a long generation, so the prompt
        does not enter; `ratio` is the median over pairs that ran one after the other
    batch_invariance: {batch: {on_step_ms, off_step_ms, cost}}
        what `engine.batch_invariant` costs: on over off, minus 1
    prefill: {tokens: {ours_ms, peer_ms, ratio}}

    host:
    host: {batch: {vote, schedule, plan, sample, report, rest, host_us, model_us, inputs_us,
        host_share}}
        microseconds of a decode step by part; see `benchmarks.host_work.measure_parts`
    late: {model: {batch: {off_step_ms, on_step_ms, off_quickest_ms, on_quickest_ms, gain}},
        waiting: the same, device_step_ms, group: {ranks, batch, shm, gloo}}
        what late scheduling hides of it; see `benchmarks.host_work.measure`, and
        `benchmarks.group_steps.measure` for the group

    experts:
    experts: {model, rows_per_rank, counted: [lines], released_model, released_rows_per_rank,
        computed: [lines]}
        expert bytes held and read per rank and layer, 2 to 64 ranks; the keys of a line are those
        of `benchmarks.expert_bytes.counted` and `computed`

    environment

Compare ratios; absolute figures move with whatever else the machine does.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import expert_bytes, group_steps, host_work
from benchmarks.environment import REPOSITORY, describe, interleaved, median, ratio_of_pairs
from engine.build import build_engine
from engine.config import EngineSettings
from engine.engine import LLMEngine
from engine.plan import StepKind
from engine.request import EngineRequest, SamplingParams, TokenOut

MODEL = REPOSITORY / "models" / "tiny-v4"
PROMPT_TOKENS = 128
BATCHES = (1, 8, 32)
PREFILL_TOKENS = (128, 1000)
SEED = 0
PARTS = ("peer", "host", "experts")


def make_engine(*, batch_invariant: bool) -> LLMEngine:
    """Returns a one-rank engine that takes every batch of this module at once."""
    settings = EngineSettings(
        num_pages=40 * max(BATCHES),
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=1024,
        batch_invariant=batch_invariant,
    )
    return build_engine(MODEL, settings).engine


def prompts(batch: int, tokens: int) -> list[tuple[int, ...]]:
    """Returns random prompts, the same on every call."""
    rng = random.Random(SEED + batch + tokens)
    return [tuple(rng.randrange(3, 2048) for _ in range(tokens)) for _ in range(batch)]


class OurDecode:
    """Times our steps: seconds a decode step with a full batch."""

    def __init__(self, engine: LLMEngine, batch: int, steps: int) -> None:
        self._engine = engine
        self._batch = batch
        self._steps = steps
        self._round = 0

    def __call__(self) -> float:
        self._round += 1
        for index, tokens in enumerate(prompts(self._batch, PROMPT_TOKENS)):
            self._engine.add(
                EngineRequest(
                    request_id=f"{self._batch}-{self._round}-{index}",
                    token_ids=tokens,
                    sampling=SamplingParams(max_tokens=self._steps + 120, ignore_eos=True),
                )
            )
        full = False
        while not full:
            decision, events = self._engine.step()
            tokens_out = sum(isinstance(event, TokenOut) for event in events)
            full = decision.step_kind is StepKind.DECODE and tokens_out == self._batch
        begin = time.perf_counter()
        for _ in range(self._steps):
            self._engine.step()
        seconds = (time.perf_counter() - begin) / self._steps
        for index in range(self._batch):
            self._engine.abort(f"{self._batch}-{self._round}-{index}")
        while self._engine.has_work():
            self._engine.step()
        return seconds


class PeerDecode:
    """Times transformers' generate: seconds a step, from the slope of two lengths."""

    def __init__(self, model: Any, batch: int, steps: int) -> None:
        self._model = model
        self._ids = torch.tensor(prompts(batch, PROMPT_TOKENS))
        self._steps = steps

    def __call__(self) -> float:
        short = self._seconds(2)
        return (self._seconds(2 + self._steps) - short) / self._steps

    def _seconds(self, new_tokens: int) -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                self._ids,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=2,
            )
        return time.perf_counter() - begin


def our_prefill(engine: LLMEngine, tokens: int) -> Callable[[], float]:
    """Returns a measurement of the time to the first token of one prompt."""
    counter = iter(range(1_000_000))

    def run() -> float:
        request = EngineRequest(
            request_id=f"prefill-{tokens}-{next(counter)}",
            token_ids=prompts(1, tokens)[0],
            sampling=SamplingParams(max_tokens=1, ignore_eos=True),
        )
        begin = time.perf_counter()
        engine.add(request)
        while engine.has_work():
            engine.step()
        return time.perf_counter() - begin

    return run


def peer_prefill(model: Any, tokens: int) -> Callable[[], float]:
    """Returns the same measurement of transformers."""
    ids = torch.tensor(prompts(1, tokens))

    def run() -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            model(ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - begin

    return run


def measure_peer(repetitions: int, steps: int) -> dict[str, Any]:
    """Runs us beside transformers and returns that part of the object described above."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    ours, loose = make_engine(batch_invariant=True), make_engine(batch_invariant=False)
    peer = AutoModelForCausalLM.from_pretrained(str(MODEL), dtype="float32").eval()
    decode, cost = {}, {}
    for batch in BATCHES:
        runs = interleaved(
            {
                "ours": OurDecode(ours, batch, steps),
                "peer": PeerDecode(peer, batch, steps),
                "loose": OurDecode(loose, batch, steps),
            },
            repetitions=repetitions,
        )
        decode[str(batch)] = {
            "ours_tok_s": round(batch / median(runs["ours"]), 1),
            "peer_tok_s": round(batch / median(runs["peer"]), 1),
            "ratio": round(ratio_of_pairs(runs["peer"], runs["ours"]), 2),
            "ours_step_ms": round(1e3 * median(runs["ours"]), 2),
            "peer_step_ms": round(1e3 * median(runs["peer"]), 2),
        }
        cost[str(batch)] = {
            "on_step_ms": round(1e3 * median(runs["ours"]), 2),
            "off_step_ms": round(1e3 * median(runs["loose"]), 2),
            "cost": round(ratio_of_pairs(runs["ours"], runs["loose"]) - 1, 3),
        }
    prefill = {}
    for tokens in PREFILL_TOKENS:
        runs = interleaved(
            {"ours": our_prefill(ours, tokens), "peer": peer_prefill(peer, tokens)},
            repetitions=repetitions,
        )
        prefill[str(tokens)] = {
            "ours_ms": round(1e3 * median(runs["ours"]), 1),
            "peer_ms": round(1e3 * median(runs["peer"]), 1),
            "ratio": round(ratio_of_pairs(runs["peer"], runs["ours"]), 2),
        }
    return {"decode": decode, "batch_invariance": cost, "prefill": prefill}


def measure(repetitions: int, steps: int, parts: Sequence[str]) -> dict[str, Any]:
    """Runs the parts asked for and returns the object described above."""
    result: dict[str, Any] = {}
    if "peer" in parts:
        result |= measure_peer(repetitions, steps)
    if "host" in parts:
        result |= host_work.measure(repetitions, steps)
        result["late"]["group"] = group_steps.measure(steps=steps)
    if "experts" in parts:
        result["experts"] = expert_bytes.measure()
    return result | {"environment": describe(SEED)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="only the object, on one line")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    result = measure(arguments.repetitions, arguments.steps, arguments.parts)
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
