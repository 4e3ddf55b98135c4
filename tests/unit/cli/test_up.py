"""`disagg up`: table, JSON, and the two ways it ends."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from cli import up
from cli.errors import CommandError
from cli.local import rendezvous
from cli.main import main
from runtime.errors import ExitCode
from tests.fakes.systems import FakeSystem, install

MODEL = str(Path(__file__).parents[3] / "models" / "tiny-v4")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSystem:
    monkeypatch.setattr(rendezvous, "_directory", lambda: tmp_path / "x")
    monkeypatch.setattr(up, "_LOOK_S", 0.01)
    return install(monkeypatch, FakeSystem())


def interrupt(number: int) -> None:
    """Sends this process a signal as soon as the command waits."""
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_shows_the_system_and_stops_when_asked(
    number: int, system: FakeSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    interrupt(number)
    assert main(["up", "--model", MODEL, "--decode-ranks", "4"]) == 0
    captured = capsys.readouterr()
    assert "  decode  d0      h:2        ready   22" in captured.out.splitlines()
    assert 'disagg generate "ROMEO:" --stream' in captured.out
    assert "/run/logs" in captured.out
    assert captured.err.endswith("draining\nstopped\n")
    assert system.topologies[0].decode_ranks == 4
    assert system.is_stopped
    assert rendezvous.find() is None
    assert signal.getsignal(signal.SIGTERM) is before


def test_json_is_one_object(system: FakeSystem, capsys: pytest.CaptureFixture[str]) -> None:
    system.store_url = "redis://u:secret@h"
    interrupt(signal.SIGINT)
    assert main(["up", "--model", MODEL, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["address"] == "127.0.0.1:1"
    assert value["store"] == "redis://u:***@h"
    assert "http" not in value
    assert [row["role"] for row in value["processes"]] == ["store", "decode"]


def test_a_part_that_ends_ends_the_command(
    system: FakeSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    system.error = CommandError("decode ended with signal SIGKILL", ExitCode.FAILED)
    assert main(["up", "--model", MODEL]) == 1
    assert "disagg up: decode ended" in capsys.readouterr().err
    assert system.is_stopped


def test_the_http_face_is_shown(system: FakeSystem, capsys: pytest.CaptureFixture[str]) -> None:
    system.http_address = "127.0.0.1:8"
    interrupt(signal.SIGINT)
    assert main(["up", "--model", MODEL, "--http", "8"]) == 0
    shown = capsys.readouterr().out
    assert "http://127.0.0.1:8/v1" in shown
    assert "http://127.0.0.1:8/ui" in shown
    interrupt(signal.SIGINT)
    assert main(["up", "--model", MODEL, "--http", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["http"] == "http://127.0.0.1:8"
    assert system.topologies[0].http_port == 8


def test_a_system_with_traces_says_how_to_look_at_them(
    system: FakeSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    system.trace_address = "h:3"
    interrupt(signal.SIGTERM)
    assert main(["up", "--model", MODEL, "--trace"]) == 0
    assert "disagg trace REQUEST_ID" in capsys.readouterr().out
    assert system.topologies[-1].has_traces
    interrupt(signal.SIGTERM)
    assert main(["up", "--model", MODEL, "--trace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["traces"] == "h:3"


@pytest.mark.parametrize(
    ("address", "mode", "url"),
    [
        ("", "mtls", ""),
        ("127.0.0.1:8000", "off", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000", "tls", "https://127.0.0.1:8000"),
        ("127.0.0.1:8000", "mtls", "https://127.0.0.1:8000"),
    ],
)
def test_the_address_that_it_shows_can_be_opened(address: str, mode: str, url: str) -> None:
    assert up.url_of(address, mode) == url
