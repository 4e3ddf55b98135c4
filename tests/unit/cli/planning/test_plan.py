"""`disagg plan`: keys of the JSON, the text, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main
from cli.planning import plan
from simulator.topology import parse_topology

DATA = Path(__file__).parents[3] / "data"
FLAGS = ["plan", "--trace", str(DATA / "azure_conv_head.csv"), "--requests", "100"]


@pytest.mark.medium
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["is_good"]
    assert found["goodput"] >= 0.99
    assert found["binding"]
    assert isinstance(found["would_have_violated"], list)
    topology = found["topology"]
    assert topology.pop("accelerators") == 16
    assert parse_topology(topology).prefill.ranks == 8  # in the form of a topology file


@pytest.mark.medium
def test_text_and_smaller_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(DATA / "mooncake_conversation_head.jsonl")
    flags = ["--trace", trace, "--load", "25", "--goodput", "0.9"]
    assert main([*FLAGS, *flags]) == 0
    text = capsys.readouterr().out
    for word in ("prefill", "decode", "accelerators", "binds", "would have violated"):
        assert word in text


@pytest.mark.medium
def test_no_cluster_is_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FLAGS, "--slo", "ttft=1ms"]) == 1
    assert "no cluster that was tried is good enough" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--goodput", "0"), "--goodput 0.0: give a share"),
        (("--goodput", "1.5"), "--goodput 1.5"),
        (("--requests", "0"), "--requests 0"),
        (("--load", "-1"), "--load -1.0"),
        (("--hardware", "h900"), "'h900'"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    assert main([*FLAGS, *flags]) == 2
    assert message in capsys.readouterr().err


def test_stores_of_every_size_are_told() -> None:
    sizes = (0.0, 5e6, 4e12)
    assert list(map(plan._stored, sizes)) == ["none", "5,000.0 KB", "4,000.0 GB"]
