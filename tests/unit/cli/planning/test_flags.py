"""Flags of the dry runs: defaults, help with an example, and no torch needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import build_parser, main
from cli.planning.flags import plan_of
from engine.parallel.layout import ExpertSlots, Layout


@pytest.mark.parametrize("command", ["topology", "ledger"])
def test_defaults(command: str) -> None:
    options = build_parser().parse_args([command])
    assert options.json is False
    plan = plan_of(options)
    assert plan.layout == Layout(dp=1, cp=1, ep=1, enp=1, attn_tp=1)
    assert plan.slots == ExpertSlots(num_logical=16, ep=1, min_redundant=1)
    assert (plan.model, plan.gpu.name, plan.errors) == ("models/tiny-v4", "h200", ())


@pytest.mark.parametrize("command", ["topology", "ledger"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"example: disagg {command} --model v4.1-flash" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["topology", "ledger"])
def test_a_settings_file_gives_model_layout_and_redundancy(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "decode.json"
    model = str(Path("models/tiny-v4").resolve())
    file.write_text(
        json.dumps(
            {
                "model": {"path": model},
                "group": {"layout": "dp=2,ep=2"},
                "engine": {"min_redundant": 17},
            }
        )
    )
    assert main([command, "--config", str(file), "--json"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert error.startswith("SLOTS: min_redundant 17 is more than the 16")
    # Ranks without a layout are engines that share the experts.
    file.write_text(json.dumps({"model": {"path": model}, "group": {"ranks": 4}}))
    assert main([command, "--config", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{model}: ")


@pytest.mark.parametrize(
    ("content", "flags", "words"),
    [
        ("group.layout = 'dp=2'", ["--dp", "2"], "--dp 2 with --config"),
        ("group.layout = 'dp=2'", ["--model", "v4-pro"], "--model v4-pro with --config"),
        # Also what equals the default of the flag.
        ("group.layout = 'dp=2'", ["--min-redundant", "1"], "--min-redundant 1 with --config"),
        ("group.layout = 'dp=2,dp=4'", [], "dp is given twice, 2 and 4: leave one out"),
        ("group.ranks = 0", [], "group.ranks"),
        ("group.size = 3", [], "unknown setting group.size"),
        ("[", [], "not valid .toml"),
    ],
)
@pytest.mark.parametrize("command", ["topology", "ledger"])
def test_a_file_that_says_something_else_exits_2(
    command: str,
    content: str,
    flags: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "decode.toml"
    file.write_text(content)
    assert main([command, "--config", str(file), *flags]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["topology", "ledger"])
@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--dp", "10000000000", "--ep", "4"], "SIZE: dp 10000000000, cp 1, ep 4, attn_tp 1"),
        (["--enp", "3000000000"], "SIZE: dp 1, cp 1, ep 1, attn_tp 1, enp 3000000000"),
        (["--ep", "16385"], "make 16385 ranks, more than 16384: lower the sizes"),
        (["--cp", "16", "--ep", "16"], "V5: cp 16 is more than the 8 ranks of a node"),
    ],
)
def test_both_dry_runs_refuse_alike(
    command: str, flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--model", "v4.1-flash", "--json", *flags]) == 2
    [found] = json.loads(capsys.readouterr().out)["errors"]
    assert error in found


def test_a_settings_file_is_held_to_the_ranks_of_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "decode.toml"
    file.write_text("group.layout = 'dp=700,ep=1'")
    assert main(["topology", "--config", str(file)]) == 2
    assert "SIZE: 700 ranks are more than 512" in capsys.readouterr().out
    # Flags describe a deployment, which may be larger.
    assert main(["topology", "--dp", "700"]) == 0


@pytest.mark.medium
@pytest.mark.parametrize("command", ["topology", "ledger"])
def test_a_machine_without_torch_can_plan(command: str) -> None:
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; from cli.main import main; "
        f"code = main(['{command}', '--model', 'v4-pro']); "
        "sys.exit(code or 9 * ('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("v4-pro: ")
