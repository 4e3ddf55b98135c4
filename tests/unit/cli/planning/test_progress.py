"""The progress bar: on a terminal only, and never on standard output."""

from __future__ import annotations

import io
import sys

import pytest

from cli.planning.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_that_moves_and_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress()
    progress.update("deepseek", 500, 1000)
    progress.finish("done")
    text = terminal.getvalue()
    assert "deepseek             [###############...............] 500 of 1,000" in text
    assert text.endswith("\rdone\n")


def test_silence_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.update("deepseek", 1, 2)
    progress.finish()
    assert capsys.readouterr() == ("", "")
