"""Decode steps of a group of engines with and without late scheduling, by transport.

With late scheduling the vote on a step goes on while the step before it runs, so what a vote takes
is hidden as well as the host work; over gloo a vote of some ranks takes milliseconds.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import REPOSITORY
from engine.build import build_engine
from engine.config import EngineSettings
from engine.parallel.worker import RankContext, run_group
from engine.plan import StepKind
from engine.request import EngineRequest, SamplingParams

MODEL = REPOSITORY / "models" / "tiny-v4"
PROMPT_TOKENS = 16
# Stretches of one setting take turns, so that a busy moment meets both.
STRETCHES = 12


def measure(
    *,
    num_ranks: int = 4,
    backends: tuple[str, ...] = ("shm", "gloo"),
    batch: int = 4,
    steps: int = 20,
) -> dict[str, Any]:
    """Returns, by backend, `off_step_ms` and `on_step_ms` (medians of rank 0) and `gain`.

    Raises:
        RuntimeError: a group failed, which its supervisor has logged.
    """
    results: dict[str, Any] = {"ranks": num_ranks, "batch": batch}
    for backend in backends:
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "steps.json"
            code = run_group(
                "benchmarks.group_steps:measure_rank",
                num_ranks,
                {"batch": batch, "steps": steps, "out": str(out)},
                backend=backend,
                group_name=f"late-{backend}",
            )
            if code:
                raise RuntimeError(f"the group over {backend} failed, see the log above")
            seconds: dict[str, list[float]] = json.loads(out.read_text())
        off, on = (1e3 * statistics.median(seconds[name]) for name in ("off", "on"))
        results[backend] = {
            "off_step_ms": round(off, 3),
            "on_step_ms": round(on, 3),
            "gain": round(1 - on / off, 3),
        }
    return results


def measure_rank(context: RankContext, options: dict[str, int | str]) -> None:
    """Rank side: two engines on the same ports would share channels, so one engine is switched."""
    torch.set_num_threads(1)
    batch, steps = int(options["batch"]), int(options["steps"])
    settings = EngineSettings(
        num_pages=16 * batch,
        max_num_seqs=batch,
        max_num_batched_tokens=max(64, batch),
        late_scheduling=True,
        rank=context.rank,
        num_ranks=context.num_ranks,
    )
    built = build_engine(MODEL, settings, context=context)
    engine: Any = built.engine
    late = engine._may_be_late
    rng = random.Random(context.rank)
    for idx in range(batch):
        prompt = tuple(rng.randrange(3, 2048) for _ in range(PROMPT_TOKENS))
        sampling = SamplingParams(max_tokens=STRETCHES * (steps + 4) + 40, ignore_eos=True)
        engine.add(EngineRequest(request_id=str(idx), token_ids=prompt, sampling=sampling))
    while engine.step()[0].step_kind is not StepKind.DECODE:
        pass
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    for stretch in range(STRETCHES):
        name = ("off", "on")[stretch % 2]
        engine._may_be_late = late if name == "on" else lambda *_: False
        for number in range(steps + 4):
            begin = time.perf_counter()
            engine.step()
            if number >= 4:
                seconds[name].append(time.perf_counter() - begin)
    engine.request_stop()
    for idx in range(batch):
        engine.abort(str(idx))
    while not engine.is_stop_agreed:
        engine.step()
    built.close()
    if context.rank == 0:
        Path(str(options["out"])).write_text(json.dumps(seconds))
