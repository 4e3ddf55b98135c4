"""`disagg members` against a whole balancer with scripted members."""

from __future__ import annotations

import asyncio
import json

import pytest

from cli.local import rendezvous
from cli.main import main
from cli.members import lines_of, state_of
from disagg.v1 import membership_pb2
from tests.fakes.front_door import front_door

PREFILL, DECODE = membership_pb2.MEMBER_ROLE_PREFILL, membership_pb2.MEMBER_ROLE_DECODE


def member(
    role: membership_pb2.MemberRole, layout: bytes, *, draining: bool = False
) -> membership_pb2.Member:
    return membership_pb2.Member(
        member_id="m", role=role, address="h:1", fingerprint=layout, ready=True, draining=draining
    )


@pytest.mark.medium
async def test_states_loads_and_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    async with front_door(announce=False) as door:
        command = ["members", "--address", door.balancer.host.address]
        assert await asyncio.to_thread(main, command) == 1
        assert capsys.readouterr().out == "no member announces itself\n"
        [p0, d0] = door.members
        await p0.announce(door.channel)
        await d0.announce(door.channel, ready=False)
        assert await asyncio.to_thread(main, command) == 0
        head, prefill, decode, last = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["role", "member", "address", "state"]
        assert prefill.split()[:4] == ["prefill", "p0", p0.address, "ready"]
        assert prefill.split()[-1] == p0.fingerprint.hex()
        assert decode.split()[:5] == ["decode", "d0", d0.address, "not", "ready"]
        assert last.endswith("prefill without a partner that is ready, so it serves nothing")
        assert await asyncio.to_thread(main, [*command, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["members"]
        assert [(m["member_id"], m["role"], m["ready"]) for m in told] == [
            ("p0", "prefill", True),
            ("d0", "decode", False),
        ]
        assert told[0]["fingerprint"] == p0.fingerprint.hex()


@pytest.mark.medium
async def test_a_member_that_fell_silent_is_stale_and_its_numbers_are_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    membership = {"interval_s": 0.01, "stale_after_s": 0.3, "forget_after_s": 60.0}
    async with front_door(membership=membership) as door:
        balancer = door.balancer
        await door.until(lambda: not balancer.members.can_serve(balancer.clock.now()))
        command = ["members", "--address", balancer.host.address]
        assert await asyncio.to_thread(main, command) == 0
        _, prefill, decode, last = capsys.readouterr().out.splitlines()
        for line in (prefill, decode):
            assert line.split()[3:7] == ["stale", "-", "-", "-"]
        assert last == "no member is ready"


def test_what_hinders_a_member_is_its_state() -> None:
    silent = member(DECODE, b"1", draining=True)
    silent.exclusion = "stale"
    alone = member(DECODE, b"1")
    alone.exclusion = "group_incomplete"
    states = [state_of(item) for item in (silent, alone, member(DECODE, b"1", draining=True))]
    assert states == ["stale", "group incomplete", "draining"]


@pytest.mark.parametrize(
    ("members", "last"),
    [
        ([member(PREFILL, b"1"), member(DECODE, b"1")], "1 layout can"),
        ([member(PREFILL, b"1"), member(DECODE, b"2")], "layout 32: dec"),
        ([member(PREFILL, b"1", draining=True)], "no member is ready"),
    ],
)
def test_a_layout_needs_both_roles(members: list[membership_pb2.Member], last: str) -> None:
    assert lines_of(members)[-1].startswith(last)


def test_without_a_system(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "find", lambda: None)
    assert main(["members"]) == 2
    assert "run `disagg up`, or give --address" in capsys.readouterr().err
    assert main(["members", "--address", "127.0.0.1:1"]) == 1
    assert "nothing answers at 127.0.0.1:1" in capsys.readouterr().err
