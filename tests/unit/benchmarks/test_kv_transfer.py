"""The benchmark of the store runs in small, and reports the ratios it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.kv_transfer import quick, ratios_of


@pytest.mark.medium
def test_it_prints_one_object_with_every_part() -> None:
    flags = ["--megabytes", "2", "--repetitions", "3", "--tokens", "300", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kv_transfer", *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    for name in ("put_vs_redis_py", "get_vs_redis_py"):
        assert report[name] > 0
    assert -1 < report["digest_overhead"] < 10
    assert set(report["transfer"]) == {"65536", "262144", "1048576"}
    for ways in report["transfer"].values():
        assert len(ways) == 8
        for row in ways.values():
            assert row["gb_s"] > 0
            assert row["client_cpu_s_per_gb"] > 0
    assert set(report["lookup"]) == {"16", "256", "4096"}
    assert report["handoff"]["300"]["num_bytes"] == 2 * 128 * 890 + 40 * 67_584
    assert report["handoff"]["300"]["overlap_total_ms"] > 0
    assert set(report["clients"]) == {"1", "2", "4"}
    assert report["peers"] == {}


def test_ratios_take_the_better_way_of_the_peer() -> None:
    walls = {
        "put": 1.0,
        "put_plain": 0.8,
        "put_redis_py": 3.0,
        "put_redis_py_pipelined": 2.0,
        "get": 1.0,
        "get_plain": 1.0,
        "get_redis_py": 1.5,
        "get_redis_py_pipelined": 4.0,
    }
    assert ratios_of(walls) == {"put": 2.0, "put_digest": 1.25, "get": 1.5, "get_digest": 1.0}
    assert quick([4.0, 1.0, 3.0, 2.0]) == 2.0
