"""The benchmark of the simulator: its keys, on a few requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from balancer.router import Router
from benchmarks.simulator import main

HEAD = Path(__file__).parents[2] / "data" / "mooncake_synthetic_head.jsonl"

pytestmark = pytest.mark.medium


def test_documented_keys_and_nothing_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    place = Router.place
    assert main(["--requests", "30", "--policy", "deepseek,random", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["requests"] == 30
    assert [result["policy"] for result in found["results"]] == ["deepseek", "random"]
    for result in found["results"]:
        assert result["decisions"] >= 30
        assert 0 < result["us_per_decision"] * result["decisions"] / 1e6 < result["cpu_s"]
    assert {"trace", "target_wall_s", "settings", "environment"} <= set(found)
    assert Router.place is place


def test_a_trace_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(HEAD)]) == 0
    assert "requests a processor second" in capsys.readouterr().out
