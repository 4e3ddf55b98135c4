"""`disagg explain` against a whole balancer with scripted members."""

from __future__ import annotations

import asyncio
import json

import pytest

from cli import explain
from cli.local import rendezvous
from cli.main import main
from disagg.v1 import routing_pb2
from tests.fakes.front_door import FrontDoor, front_door

pytestmark = pytest.mark.medium


async def run(door: FrontDoor, *arguments: str) -> int:
    address = door.balancer.host.address
    return await asyncio.to_thread(main, ["explain", *arguments, "--address", address])


async def test_people_read_who_was_chosen_why_and_what_would_change_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with front_door(prefills=2, decodes=3) as door:
        door.balancer.members.assign("d0", "other", 900)
        door.balancer.members.suspect("d1", "reset", door.balancer.clock.now(), 60.0)
        await door.generate("r1")
        assert await run(door, "r1") == 0
        text = capsys.readouterr().out
        for wanted in (
            "request r1: 1 decision\n",
            "PLACE, by deepseek version 2; the record gives the same again",
            "prompt    4 tokens, 0 of them stored; length class <16K",
            "prefill: 2 candidates, 0 excluded",
            "2 are equally good: it was the turn of p0",
            "decode: 2 candidates, 1 excluded",
            ">  d2",
            "- d1: suspect (reset)",
            "d2 before d0 by",
        ):
            assert wanted in text
        assert "what would change" not in text
        assert await run(door, "r1", "--what-if") == 0
        text = capsys.readouterr().out
        assert "if tokens of decode d2 were 901 instead of 0, d0 would be chosen" in text
        assert "p1 would be chosen" in text


async def test_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    async with front_door(decodes=2) as door:
        await door.generate("r1")
        assert await run(door, "r1", "--json", "--what-if") == 0
        [line] = capsys.readouterr().out.splitlines()
        answer = json.loads(line)
        assert answer["request_id"] == "r1"
        [decision] = answer["decisions"]
        assert decision.keys() == {field.name for field in routing_pb2.Decision.DESCRIPTOR.fields}
        assert decision["verdict"] == "place"
        assert decision["is_reproduced"] is True
        assert decision["num_tokens"] == 4
        assert len(decision["quota_coefficients"]) == 3
        assert [item["is_chosen"] for item in decision["decode"]["considered"]] == [True, False]
        assert decision["prefill"]["considered"][0]["length_class"] is None
        assert {change["role"] for change in decision["changes"]} == {"decode"}


async def test_a_request_that_nobody_knows_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with front_door() as door:
        assert await run(door, "r1") == 1
        captured = capsys.readouterr()
        assert "keeps no decision on request 'r1'" in captured.err
        assert "--address" in captured.err
        assert captured.out == ""
        assert await run(door, "no id") == 2
        assert "request_id: 'no id' is not an id" in capsys.readouterr().err


def test_nobody_to_ask_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["explain", "r1", "--address", "127.0.0.1:1"]) == 1
    assert "nothing answers at 127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setattr(rendezvous, "find", lambda: None)
    assert main(["explain", "r1"]) == 2
    assert "run `disagg up`" in capsys.readouterr().err


def test_long_lists_are_cut_and_say_so() -> None:
    members = [
        routing_pb2.ConsideredMember(member_id=f"p{i}", is_chosen=i == 0, length_class=i % 2)
        for i in range(40)
    ]
    side = routing_pb2.DecisionSide(chosen_id="p0", considered=members)
    lines = list(explain.lines_of(routing_pb2.Decision(verdict="place", prefill=side)))
    assert sum(line.startswith("    ") and " p" in line for line in lines) == 12
    assert "    ... and 28 more; --json tells all" in lines
    assert any("class" in line.split() for line in lines)  # the column
    assert any("DOES NOT GIVE THE SAME AGAIN" in line for line in lines)
