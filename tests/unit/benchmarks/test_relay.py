"""The relay benchmark's arithmetic, and a short run of our own paths."""

from __future__ import annotations

import contextlib
import json
import sys

import pytest

from benchmarks import relay
from benchmarks.relay import summary
from benchmarks.relay_load import Load


def load(wall: float, *latencies: float) -> Load:
    return Load(wall=wall, chunks=100, latencies=list(latencies), first=list(latencies))


def test_figures_are_medians_and_ratios_of_pairs() -> None:
    fast = {
        "direct": [load(0.5), load(0.5)],
        "ours_http": [load(2.0), load(4.0)],
        "smg": [load(1.0), load(1.0)],
    }
    paced = {
        "direct": [load(1.0, 0.1, 0.1), load(1.0, 0.1, 0.1)],
        "ours_http": [load(1.0, 0.2, 0.2), load(1.0, 0.2, 0.4)],
        "smg": [load(1.0, 0.15, 0.15), load(1.0, 0.15, 0.15)],
    }
    used = {"ours_http": [2e-4, 4e-4], "smg": [1e-4, 1e-4]}
    found = summary(fast, paced, used)
    assert found["cpu_us_per_chunk"] == {"ours_http": 300.0, "smg": 100.0}
    assert found["cpu_ratio"] == {"smg": 3.0}
    assert found["chunks_per_s"] == {"direct": 200, "ours_http": 38, "smg": 100}
    assert found["chunks_ratio"] == {"smg": 0.375}
    assert found["latency_ms"]["direct"] == {"p50": 100.0, "p99": 100.0}
    assert found["added_ms"]["smg"] == pytest.approx(50.0)
    assert set(found["added_ratio"]) == {"smg"}


@pytest.mark.medium
@pytest.mark.timeout(120)
def test_it_runs_without_other_routers(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--json", "--streams", "2", "--repetitions", "1"]
    assert relay.main([*flags, "--requests", "1", "--paced-requests", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found["chunks_per_s"]) == {"direct", "ours_http", "ours_grpc"}
    assert all(value > 0 for value in found["chunks_per_s"].values())
    assert set(found["cpu_us_per_chunk"]) == {"ours_http", "ours_grpc"}
    assert found["peers_missing"] == list(relay.PEERS)
    assert found["latency_ms"]["direct"]["p50"] >= 15 * 40


@pytest.mark.medium
def test_a_router_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(OSError, match="ended with"), contextlib.ExitStack() as stack:
        stack.enter_context(relay.peer(sys.executable, ("-c", "pass"), "127.0.0.1:1", 1))
