"""`disagg simulate`: keys of the JSON, the table, pictures, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

DATA = Path(__file__).parents[3] / "data"
HEAD = str(DATA / "mooncake_conversation_head.jsonl")

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "short.jsonl"
    path.write_text("".join(Path(HEAD).read_text().splitlines(keepends=True)[:120]))
    return str(path)


def simulate(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["simulate", "--json", *flags]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str], short: str) -> None:
    found = simulate(capsys, "--trace", short, "--policy", "deepseek,round_robin")
    assert list(found["policies"]) == ["deepseek", "round_robin"]
    for figures in found["policies"].values():
        assert set(figures["ttft"]) == set(figures["tpot"]) == {"mean", "p50", "p90", "p99"}
        assert 0 <= figures["goodput"] <= 1
        assert figures["completed"] + figures["rejected"] == 120
        assert set(figures["imbalance"]) == {"requests", "kv"}
    assert found["cluster"]["prefill_engines"] == 8
    assert found["slo"] == "ttft=2s+1s/16k,tpot=50ms"


def test_a_topology_file_and_flags(
    capsys: pytest.CaptureFixture[str], short: str, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("[decode]\nranks = 16\n")
    found = simulate(
        capsys, "--trace", short, "--topology", str(path), "--hardware", "h200", "--load", "2"
    )
    assert found["cluster"]["hardware"] == "h200"
    assert found["cluster"]["decode_engines"] == 16
    assert found["arrival_factor"] == 2.0


def test_pictures(capsys: pytest.CaptureFixture[str], short: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures come with disagg[plot]")
    found = simulate(capsys, "--trace", short, "--plot", str(tmp_path / "p"))
    assert found["pictures"] == ["latency.png", "imbalance.png", "queue_deepseek.png"]
    assert (tmp_path / "p" / "latency.png").is_file()


def test_the_table_names_every_policy(capsys: pytest.CaptureFixture[str], short: str) -> None:
    assert main(["simulate", "--trace", short, "--policy", "random,least_tokens"]) == 0
    text = capsys.readouterr().out
    assert "8 prefill engines in groups of 8, 64 decode ranks in groups of 64" in text
    for name in ("random", "least_tokens", "goodput", "TTFT mean"):
        assert name in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--policy", "best"), "no policy 'best'; there are: deepseek"),
        (("--policy", ","), "no policy"),
        (("--policy", "deepseek:fast=1"), "no option 'fast'; there are: "),
        (("--policy", "deepseek:round_s=x"), "round_s is 'x'; wanted like round_s=5.0"),
        (
            ("--policy", "deepseek:refuse_late=1"),
            "refuse_late '1' must be one of stated, always, never",
        ),
        (("--policy", "deepseek:max_moves=x"), "wanted like max_moves=2"),
        (("--policy", "deepseek:round_s=-1"), "round_s"),
        (("--load", "0"), "--load 0.0: give a positive number"),
        (("--load", "nan"), "--load nan"),
        (("--hardware", "h900"), "hardware 'h900' is unknown; known: a800"),
        (("--model", "gpt"), "model 'gpt' is unknown"),
        (("--topology", "none.toml"), "check --topology"),
        (("--slo", "fast"), "--slo: 'fast' is no target"),
    ],
)
def test_usage_errors(
    capsys: pytest.CaptureFixture[str], short: str, flags: tuple[str, ...], message: str
) -> None:
    assert main(["simulate", "--trace", short, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_trace_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": "x"}\n')
    assert main(["simulate", "--trace", str(path)]) == 2
    assert "line 1: output_length is 'x'" in capsys.readouterr().err


def test_a_missing_package_is_named_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
    short: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "simulator.results.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["simulate", "--trace", short, "--plot", str(tmp_path)]) == 3
    assert "install disagg[plot]" in capsys.readouterr().err


def test_a_picture_directory_that_is_a_file(
    capsys: pytest.CaptureFixture[str], short: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="pictures come with disagg[plot]")
    (tmp_path / "file").write_text("")
    assert main(["simulate", "--trace", short, "--plot", str(tmp_path / "file")]) == 2
    assert "give a directory" in capsys.readouterr().err
