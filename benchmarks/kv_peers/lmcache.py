"""LMCache's Redis backend (its C++ RESP connector), through its own benchmark command."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path


def measure(
    interpreter: str, port: int, size: int, total: int, repetitions: int
) -> tuple[float, float]:
    """Median GB/s of store and load against a server on loopback TCP.

    Args:
        interpreter: Python of an environment that has the package `lmcache`.
        port: Of the server.
        size: Bytes of a value.
        total: Bytes of one round.
        repetitions: Rounds.

    Raises:
        RuntimeError: Its command failed.
    """
    adapter = {"type": "resp", "host": "127.0.0.1", "port": port, "num_workers": 2}
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "result.json"
        done = subprocess.run(
            [
                str(Path(interpreter).parent / "lmcache"),
                *("bench", "l2", "--l2-adapter", json.dumps(adapter)),
                *("--num-keys", str(total // size), "--data-size-kb", str(size >> 10)),
                *("--rounds", str(repetitions), "--format", "json", "--output", str(out)),
            ],
            env={**os.environ, "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not out.exists():
            raise RuntimeError(f"lmcache: {(done.stderr or done.stdout)[-500:]}")
        metrics = json.loads(out.read_text())["metrics"]
    rates = {}
    for operation in metrics.values():
        if "duration_p50_ms" in operation:
            moved = operation["keys_per_round"] * size / 1e9
            rates[operation["operation"]] = moved / (operation["duration_p50_ms"] / 1e3)
    return rates["Store"], rates["Load"]
