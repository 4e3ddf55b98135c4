"""Flags of the dry runs: defaults, help with an example, and no torch needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.main import build_parser, main


@pytest.mark.parametrize("command", ["topology", "ledger"])
def test_defaults(command: str) -> None:
    options = build_parser().parse_args([command])
    found = {name: getattr(options, name) for name in ("dp", "cp", "ep", "enp", "attn_tp")}
    assert found == {"dp": 0, "cp": 1, "ep": 1, "enp": 0, "attn_tp": 1}
    assert options.model == "models/tiny-v4"
    assert options.min_redundant == 1
    assert options.json is False


@pytest.mark.parametrize("command", ["topology", "ledger"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"example: disagg {command} --model v4.1-flash" in capsys.readouterr().out


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
