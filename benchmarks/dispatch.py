"""Communication time of a decode step: shared memory against gloo, at 2, 4 and 8 ranks.

A step is one vote and, for each of six layers, a dispatch and a combine: the collectives of a
decode step of the bundled model without its arithmetic. All groups are measured in one run on one
machine; a figure is the median over the steps of rank 0, which all ranks take together.

    python -m benchmarks.dispatch --json

JSON keys: `results` (a list of `backend`, `ranks`, `step_ms_p50`, `step_ms_p90`, `vote_ms_p50`),
`gloo_over_shm` (ratio of the medians by number of ranks), `settings` and `environment`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.environment import describe
from engine.parallel.dispatch import Dispatcher
from engine.parallel.lockstep import VotePort, VoteVector
from engine.parallel.worker import RankContext, open_ports, run_group

BACKENDS = ("shm", "gloo")
NUM_LAYERS = 6
HIDDEN = 128
TOP_K = 2
SLOTS_PER_RANK = 4


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints a table (or one JSON object) and returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Communication time of a decode step, shared memory against gloo.",
        epilog="example: python -m benchmarks.dispatch --ranks 2 4 --json",
    )
    parser.add_argument("--ranks", type=_count, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rows", type=_count, default=8, help="rows per rank (8)")
    parser.add_argument("--steps", type=_count, default=200, help="measured steps (200)")
    parser.add_argument("--warm-up", type=_count_or_none, default=20, help="steps before (20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    given = parser.parse_args(arguments)
    results = []
    for num_ranks in given.ranks:
        for backend in BACKENDS:
            result = measure_group(
                backend,
                num_ranks,
                {
                    "rows": given.rows,
                    "steps": given.steps,
                    "warm_up": given.warm_up,
                    "seed": given.seed,
                },
            )
            if result is None:
                return 1
            results.append(result)
            print(
                f"{backend:>5} {num_ranks:>3} ranks: step {result['step_ms_p50']:8.3f} ms "
                f"(p90 {result['step_ms_p90']:.3f}), vote {result['vote_ms_p50']:.3f} ms",
                file=sys.stderr if given.json else sys.stdout,
            )
    if given.json:
        print(json.dumps(report(results, vars(given))))
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else _count(text)


def report(results: list[dict[str, object]], settings: dict[str, object]) -> dict[str, object]:
    """The JSON object: results, their ratios, and what they were measured with."""
    medians = {(row["backend"], row["ranks"]): row["step_ms_p50"] for row in results}
    ratios = {
        str(ranks): round(float(str(medians["gloo", ranks])) / float(str(shm)), 2)
        for (backend, ranks), shm in medians.items()
        if backend == "shm" and ("gloo", ranks) in medians
    }
    sizes = {"layers": NUM_LAYERS, "hidden": HIDDEN, "top_k": TOP_K, "slots": SLOTS_PER_RANK}
    return {
        "benchmark": "dispatch",
        "results": results,
        "gloo_over_shm": ratios,
        "settings": {**settings, **sizes},
        "environment": describe(int(str(settings["seed"]))),
    }


def measure_group(
    backend: str, num_ranks: int, settings: dict[str, int]
) -> dict[str, object] | None:
    """Runs one group; None when a rank failed, which the group has logged."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "result.json"
        code = run_group(
            "benchmarks.dispatch:measure_rank",
            num_ranks,
            {**settings, "out": str(out)},
            backend=backend,
            group_name=f"bench-{backend}-{num_ranks}",
        )
        if code:
            return None
        times: dict[str, list[float]] = json.loads(out.read_text())
    step_ms = sorted(1e3 * second for second in times["step_s"])
    return {
        "backend": backend,
        "ranks": num_ranks,
        "step_ms_p50": round(statistics.median(step_ms), 4),
        "step_ms_p90": round(step_ms[int(0.9 * len(step_ms))], 4),
        "vote_ms_p50": round(1e3 * statistics.median(times["vote_s"]), 4),
    }


def measure_rank(context: RankContext, options: dict[str, int | str]) -> None:
    """Rank side: the same steps on every rank; rank 0 writes its times."""
    rows_per_rank = int(options["rows"])
    ports = open_ports(context, hidden=HIDDEN, top_k=TOP_K, max_tokens=rows_per_rank)
    generator = np.random.default_rng((int(options["seed"]), context.rank))
    num_slots = SLOTS_PER_RANK * context.num_ranks
    rows = torch.from_numpy(generator.standard_normal((rows_per_rank, HIDDEN), np.float32))
    ids = torch.from_numpy(generator.integers(0, num_slots, (rows_per_rank, TOP_K)))
    weights = torch.from_numpy(generator.random((rows_per_rank, TOP_K), np.float32))
    steps, votes = [], []
    for _ in range(int(options["warm_up"]) + int(options["steps"])):
        votes.append(_timed_vote(ports.vote))
        start = time.perf_counter()
        _timed_vote(ports.vote)
        _exchange_layers(ports.dispatcher, rows, ids, weights)
        steps.append(time.perf_counter() - start)
    ports.close()
    if context.rank == 0:
        measured = slice(int(options["warm_up"]), None)
        times = {"step_s": steps[measured], "vote_s": votes[measured]}
        Path(str(options["out"])).write_text(json.dumps(times))


def _timed_vote(vote: VotePort) -> float:
    start = time.perf_counter()
    vote.reduce_max(VoteVector(unfinished=True, decode_rows=1).to_array())
    return time.perf_counter() - start


def _exchange_layers(
    dispatcher: Dispatcher, rows: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> None:
    for _ in range(NUM_LAYERS):
        dispatched = dispatcher.dispatch(rows, ids, weights, SLOTS_PER_RANK)
        dispatcher.combine(dispatched.rows, dispatched.handle)


if __name__ == "__main__":
    sys.exit(main())
