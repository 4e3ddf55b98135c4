"""The command line: help, usage errors, and one exit code per kind of end."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from cli import main as module
from cli.errors import CommandError
from cli.main import build_parser, main
from runtime.errors import ExitCode

COMMANDS = (
    "up",
    "demo",
    "generate",
    "verify",
    "topology",
    "ledger",
    "members",
    "drain",
    "config",
    "doctor",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "example:" in out
    assert f"disagg {command}" in out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["generate"], ["verify"], ["up", "--x"]])
def test_usage_errors_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_flags_are_never_guessed() -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["generate", "x", "--max", "3"])


def ends(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CommandError("why", ExitCode.CONFIGURATION), 2, "disagg doctor: why"),
        (KeyboardInterrupt(), 1, "interrupted"),
        (ModuleNotFoundError("x", name="torch"), 3, "'torch' is missing; install disagg[local]"),
        (RuntimeError("boom"), 4, "boom"),
        (BrokenPipeError(), 1, ""),
    ],
)
def test_every_end_has_its_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module.doctor, "run", ends(error))
    assert main(["doctor"]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
