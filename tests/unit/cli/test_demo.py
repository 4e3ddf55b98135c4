"""`disagg demo`: the journey as a table, the last line, failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.main import main
from runtime.errors import Corrupt
from tests.fakes.front_door import front_door
from tests.fakes.members import Script
from tests.fakes.systems import FakeSystem, install

pytestmark = pytest.mark.medium
MODEL = str(Path(__file__).parents[3] / "models" / "tiny-v4")


async def test_the_journey_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door() as door:
        system = install(monkeypatch, FakeSystem(address=door.balancer.host.address))
        assert await asyncio.to_thread(main, ["demo", "--model", MODEL]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[-1] == "demo ok: 64 tokens"
    assert "PROSPERO" in out
    [publish] = [line for line in lines if "publish KV" in line]
    assert "9 us" in publish
    assert "100 B" in publish
    [decode] = [line for line in lines if "63 more tokens" in line]
    assert "a token" in decode
    assert "d0" in decode
    [fetch] = [line for line in lines if "fetch KV" in line]
    assert "11 us" in fetch
    assert max(map(len, lines)) <= 120
    assert system.is_stopped


async def test_a_short_prompt_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door() as door:
        door.prefills[0].scripts.append(Script(stop_at=1))
        install(monkeypatch, FakeSystem(address=door.balancer.host.address))
        arguments = ["demo", "--model", MODEL, "--prompt", "ROMEO:\n"]
        assert await asyncio.to_thread(main, arguments) == 0
    out = capsys.readouterr().out
    assert "prompt   ROMEO:\\n (4 tokens)" in out
    assert out.endswith("demo ok: 1 tokens\n")


def test_a_prompt_that_cannot_be_sent_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system = install(monkeypatch, FakeSystem())
    assert main(["demo", "--model", MODEL, "--prompt", "a\udcf0"]) == 2
    assert "prompt: character 2 is" in capsys.readouterr().err
    assert system.topologies == []


async def test_a_failed_request_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door() as door:
        door.prefills[0].scripts.extend(Script(error=Corrupt("bad digest")) for _ in range(9))
        system = install(monkeypatch, FakeSystem(address=door.balancer.host.address))
        assert await asyncio.to_thread(main, ["demo", "--model", MODEL]) == 1
    captured = capsys.readouterr()
    assert "CHECKSUM_DIFFERS" in captured.err
    assert "demo ok" not in captured.out
    assert system.is_stopped
