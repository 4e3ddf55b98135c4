"""`disagg generate` against a whole balancer with scripted members."""

from __future__ import annotations

import asyncio
import json

import pytest

from cli.local import rendezvous
from cli.main import main
from runtime.errors import Unavailable
from tests.fakes.front_door import FrontDoor, front_door
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
PROMPT = [0, 1582, 32, 205]


async def run(door: FrontDoor, *arguments: str) -> int:
    address = door.balancer.host.address
    return await asyncio.to_thread(main, ["generate", "ROMEO:\n", "--address", address, *arguments])


async def test_text_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    async with front_door() as door:
        for flags in ((), ("--stream",)):
            assert await run(door, "--max-tokens", "6", *flags) == 0
            expected = door.balancer.codec.decode(answer(PROMPT, 6))
            assert capsys.readouterr().out == expected + "\n"


async def test_json_on_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with front_door() as door:
        assert await run(door, "--max-tokens", "6", "--json", "--stream", "--seed", "5") == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["seq"] for line in lines[:-1]] == [1, 2, 3, 4, 5, 6]
        whole = lines[-1]
        assert whole["token_ids"] == answer(PROMPT, 6)
        assert whole["seed"] == 5
        assert whole["usage"]["prompt_tokens"] == 4
        assert whole["timing"]["decode_member"] == "d0"
        assert {"request_id", "text", "token_ids", "usage", "timing"} <= whole.keys()


async def test_failures_have_exit_codes_and_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    async with front_door(limits={"decode_retries": 0, "suspect_s": 0.0}) as door:
        assert await run(door, "--temperature", "-1") == 2
        assert "BAD_SAMPLING: sampling.temperature" in capsys.readouterr().err
        assert await run(door, "--max-tokens", "-1") == 2
        door.decodes[0].scripts.extend(Script(error=Unavailable("gone")) for _ in range(9))
        assert await run(door) == 1
        captured = capsys.readouterr()
        assert "STREAM_INTERRUPTED" in captured.err
        assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["\udcf0\udc9f\udc98"],
            r"BAD_REQUEST: prompt: character 1 is '\udcf0', which is no valid Unicode text; send",
        ),
        (
            ["x", "--seed", "99999999999999999999999"],
            "BAD_SAMPLING: sampling.seed: 99999999999999999999999 is out of range; send 0 to "
            "18446744073709551615",
        ),
        (["x", "--max-tokens", "4294967296"], "max_tokens: 4294967296 is out of range; send 0 to"),
    ],
)
def test_what_cannot_be_sent_exits_2_in_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *arguments, "--address", "127.0.0.1:1"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


async def test_the_system_of_this_machine_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with front_door() as door:
        monkeypatch.setattr(rendezvous, "find", lambda: door.balancer.host.address)
        assert await asyncio.to_thread(main, ["generate", "x", "--max-tokens", "2"]) == 0
    monkeypatch.setattr(rendezvous, "find", lambda: None)
    assert main(["generate", "x"]) == 2
    assert "run `disagg up`" in capsys.readouterr().err
    assert main(["generate", "x", "--address", "127.0.0.1:1"]) == 1
    assert "nothing answers at 127.0.0.1:1" in capsys.readouterr().err
