"""What every result carries: machine, versions, commit, seed; and small statistics."""

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent


def describe(seed: int) -> dict[str, Any]:
    """Returns the environment of a run as JSON values."""
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "commit": commit or "unknown",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seed": seed,
    }


def interleaved(
    runs: dict[str, Callable[[], float]], *, repetitions: int
) -> dict[str, list[float]]:
    """Runs each measurement in turn, several times, so that a busy moment meets all of them."""
    results: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, run in runs.items():
            results[name].append(run())
    return results


def median(values: Sequence[float]) -> float:
    """Median of some figures."""
    return statistics.median(values)


def ratio_of_pairs(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Median of the ratios of figures that were taken one right after the other."""
    return statistics.median(a / b for a, b in zip(ours, peer, strict=True))


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
