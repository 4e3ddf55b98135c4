"""How fast the simulator is: requests of a trace a second, and what of the time the balancer takes.

One run per policy on the default cluster; processor time beside wall-clock time, since other work
on the machine stretches the latter alone. Without `--trace` a generated workload as long as the
public conversation trace is used.

    python -m benchmarks.simulator --trace conversation_trace.jsonl --json

JSON keys: `trace`, `requests`, `results` (a list of `policy`, `wall_s`, `cpu_s`,
`requests_per_cpu_s`, `decisions`, `us_per_decision`), `target_wall_s`, `settings` and
`environment`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from balancer.router import Router
from benchmarks.environment import describe
from simulator.study import Study, make_study, run_policy
from simulator.traces.formats import read_trace
from simulator.traces.generate import MixSettings, generate_mix

TARGET_WALL_S = 20.0  # for the 12,031 requests of the conversation trace with the default policy
_REQUESTS = 12_031


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints a table (or one JSON object) and returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Simulated requests a second.",
        epilog="example: python -m benchmarks.simulator --policy deepseek,round_robin --json",
    )
    parser.add_argument("--trace", type=Path, help="Mooncake JSON lines or Azure CSV")
    parser.add_argument("--requests", type=int, default=_REQUESTS, help="of the generated one")
    parser.add_argument("--policy", default="deepseek", help="policies, comma separated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    given = parser.parse_args(arguments)
    if given.trace is None:
        trace = generate_mix(given.seed, MixSettings(num_requests=given.requests))
    else:
        trace = read_trace(given.trace)
    study = make_study(trace, None, seed=given.seed)
    results = []
    for policy in given.policy.split(","):
        found = measure(study, policy)
        results.append(found)
        print(
            f"{policy:>20}: {found['wall_s']:6.2f} s, {found['cpu_s']:6.2f} s of processor, "
            f"{found['requests_per_cpu_s']:,.0f} requests a processor second, "
            f"{found['us_per_decision']:.0f} us a decision",
            file=sys.stderr if given.json else sys.stdout,
        )
    if given.json:
        settings = {name: str(value) for name, value in vars(given).items()}
        print(
            json.dumps(
                {
                    "trace": trace.name,
                    "requests": len(trace.requests),
                    "results": results,
                    "target_wall_s": TARGET_WALL_S,
                    "settings": settings,
                    "environment": describe(given.seed),
                }
            )
        )
    return 0


def measure(study: Study, policy: str) -> dict[str, Any]:
    """Simulates once and measures the run and the decisions in it."""
    spent = [0.0]
    place = Router.place

    def timed(router: Router, *arguments: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return place(router, *arguments, **named)
        finally:
            spent[0] += time.process_time() - began

    Router.place = timed  # type: ignore[method-assign]
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        samples = run_policy(study, policy)
    finally:
        Router.place = place  # type: ignore[method-assign]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "policy": policy,
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "requests_per_cpu_s": round(len(study.trace.requests) / cpu, 1),
        "decisions": samples.decisions,
        "us_per_decision": round(1e6 * spent[0] / samples.decisions, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
