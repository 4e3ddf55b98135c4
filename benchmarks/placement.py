"""Placement policies side by side: the tables of docs/simulator.md from runs of `disagg simulate`.

    disagg simulate --trace conversation_trace.jsonl --policy all --json > conversation.json
    python -m benchmarks.placement conversation.json generated.json

The runs are deterministic, so a run of some policies may be merged into an earlier run of the same
trace and cluster: where a file names a trace that came before, its policies replace those.

With `--json`: `targets` (a list of `trace`, `best`, `best_goodput`, `default_goodput`, `behind`,
`is_met`; and for the short prompts `p99_under_16k_over_round_robin`), `traces`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DEFAULT = "deepseek"
ALLOWED_BEHIND = 0.02  # of the best goodput
WANTED_OVER_ROUND_ROBIN = 0.8  # P99 TTFT of prompts under 16K, on the mixed trace


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables (or one JSON object) and returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Tables from outputs of `disagg simulate --json`.",
        epilog="example: python -m benchmarks.placement conversation.json azure.json",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    given = parser.parse_args(arguments)
    runs = merged([json.loads(path.read_text(encoding="utf-8")) for path in given.files])
    if given.json:
        found = {"targets": [target(run) for run in runs], "traces": runs}
        print(json.dumps(found))
        return 0
    for line in goodput_table(runs):
        print(line)
    for run in runs:
        print()
        for line in latency_table(run):
            print(line)
    print()
    for run in runs:
        print(json.dumps(target(run)))
    return 0


def merged(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One run a trace; later policies replace earlier ones of the same trace and cluster.

    Raises:
        ValueError: the same trace on another cluster or at another rate.
    """
    by_trace: dict[str, dict[str, Any]] = {}
    for run in runs:
        key = f"{run['trace']['name']}, {run['trace']['requests']} requests"
        earlier = by_trace.get(key)
        if earlier is None:
            by_trace[key] = run
            continue
        for field in ("cluster", "arrival_factor", "slo", "seed"):
            if earlier[field] != run[field]:
                raise ValueError(
                    f"{key}: {field} is {earlier[field]} in one file and {run[field]} in "
                    "another; simulate them alike"
                )
        earlier["policies"].update(run["policies"])
    return list(by_trace.values())


def target(run: Mapping[str, Any]) -> dict[str, Any]:
    """How far the default policy is from the best, and from turns on short prompts."""
    policies = run["policies"]
    best = max(policies, key=lambda name: policies[name]["goodput"])
    top, own = policies[best]["goodput"], policies[DEFAULT]["goodput"]
    found = {
        "trace": run["trace"]["name"],
        "best": best,
        "best_goodput": top,
        "default_goodput": own,
        "behind": round(1 - own / top, 4) if top else 0.0,
        "is_met": own >= (1 - ALLOWED_BEHIND) * top,
    }
    if "round_robin" in policies:
        short = [policies[name]["ttft_under_16k"]["p99"] for name in (DEFAULT, "round_robin")]
        found["p99_under_16k_over_round_robin"] = round(short[0] / short[1], 3)
    return found


def goodput_table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Goodput of every policy on every trace; the best of a trace is bold."""
    names = list(dict.fromkeys(name for run in runs for name in run["policies"]))
    lines = [
        "| policy | " + " | ".join(run["trace"]["name"] for run in runs) + " |",
        "|---|" + "---:|" * len(runs),
    ]
    best = [max(found["goodput"] for found in run["policies"].values()) for run in runs]
    for name in names:
        cells = []
        for run, top in zip(runs, best, strict=True):
            found = run["policies"].get(name)
            text = "-" if found is None else f"{found['goodput']:.1%}"
            cells.append(f"**{text}**" if found and found["goodput"] == top else text)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def latency_table(run: Mapping[str, Any]) -> list[str]:
    """Latencies and decode imbalance of every policy on one trace."""
    lines = [
        f"{run['trace']['name']}, {run['trace']['requests']:,} requests, arrivals "
        f"{run['arrival_factor']:.3g} times as fast:",
        "",
        "| policy | TTFT p50 | TTFT p99 | p99 below 16K | TPOT p99 | imbalance: requests | KV |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in run["policies"].items():
        cells = [
            _seconds(found["ttft"]["p50"]),
            _seconds(found["ttft"]["p99"]),
            _seconds(found["ttft_under_16k"]["p99"]),
            _seconds(found["tpot"]["p99"]),
            _ratio(found["imbalance"]["requests"]),
            _ratio(found["imbalance"]["kv"]),
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
