"""The balancer benchmark runs, measures every size, and its replay decides the same."""

import json

import pytest

from benchmarks.balancer import SIZES, check_replay, main


@pytest.mark.medium
def test_it_prints_one_object_with_every_size(capsys):
    assert main(["--decisions", "100", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["policy"] == "deepseek"
    assert set(report["members"]) == {str(size) for size in SIZES}
    for figures in report["members"].values():
        assert min(figures.values()) > 0
        assert figures["decisions_per_s"] == pytest.approx(
            1e6 / figures["us_per_decision"], rel=0.02
        )
    assert report["replay"]["equal"] == report["replay"]["decisions"]
    assert report["environment"]["seed"] == 0


@pytest.mark.medium
def test_a_replay_of_another_policy_is_equal_too():
    assert check_replay("sgl_bucket", 50) == {"decisions": 50, "equal": 50}
