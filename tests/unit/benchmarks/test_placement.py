"""Tables from runs of `disagg simulate`: merging, targets, cells."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.placement import goodput_table, latency_table, main, merged, target


def figures(goodput: float, short_p99: float) -> dict[str, Any]:
    latency = {"mean": 1.0, "p50": 0.5, "p90": 2.0, "p99": 3.0}
    return {
        "goodput": goodput,
        "ttft": latency,
        "tpot": latency,
        "ttft_under_16k": latency | {"p99": short_p99},
        "imbalance": {"requests": 1.5, "kv": None},
    }


def run() -> dict[str, Any]:
    return {
        "trace": {"name": "t", "requests": 10},
        "cluster": {},
        "arrival_factor": 2.0,
        "slo": "",
        "seed": 0,
        "policies": {"deepseek": figures(0.49, 2.0), "round_robin": figures(0.5, 4.0)},
    }


def test_two_percent_behind_is_met_and_three_is_not() -> None:
    found = target(run())
    assert (found["best"], found["behind"], found["is_met"]) == ("round_robin", 0.02, True)
    assert found["p99_under_16k_over_round_robin"] == 0.5
    worse = run()
    worse["policies"]["deepseek"]["goodput"] = 0.485
    assert not target(worse)["is_met"]


def test_a_later_run_of_a_policy_replaces_the_earlier() -> None:
    later = run()
    later["policies"] = {"deepseek": figures(0.6, 1.0)}
    [found] = merged([run(), later])
    assert found["policies"]["deepseek"]["goodput"] == 0.6
    assert list(found["policies"]) == ["deepseek", "round_robin"]


def test_runs_on_different_clusters_do_not_mix() -> None:
    other = copy.deepcopy(run()) | {"arrival_factor": 3.0}
    with pytest.raises(ValueError, match=r"arrival_factor is 2\.0 in one file and 3\.0"):
        merged([run(), other])


def test_tables() -> None:
    assert goodput_table([run()]) == [
        "| policy | t |",
        "|---|---:|",
        "| `deepseek` | 49.0% |",
        "| `round_robin` | **50.0%** |",
    ]
    assert latency_table(run())[-1] == (
        "| `round_robin` | 500.0 ms | 3.00 s | 4.00 s | 3.00 s | 1.50 | - |"
    )


def test_files_in_tables_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run()))
    assert main([str(path)]) == 0
    assert "| `deepseek` |" in capsys.readouterr().out
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"][0]["is_met"]
