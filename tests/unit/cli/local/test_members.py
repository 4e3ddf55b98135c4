"""What the launcher asks a balancer."""

from __future__ import annotations

import asyncio

import pytest

from cli.local.members import MemberRow, is_ready, list_members
from tests.fakes.front_door import front_door

pytestmark = pytest.mark.medium


async def test_members_and_readiness() -> None:
    async with front_door(announce=False) as door:
        address = door.balancer.host.address
        assert await asyncio.to_thread(list_members, address) == []
        [p0, d0] = door.members
        await d0.announce(door.channel, ready=False)
        await p0.announce(door.channel)
        assert await asyncio.to_thread(list_members, address) == [
            MemberRow(role="prefill", name="p0", address=p0.address, state="ready"),
            MemberRow(role="decode", name="d0", address=d0.address, state="starting"),
        ]
        assert not await asyncio.to_thread(is_ready, address)
        await door.balancer.host.health.report(True, "test")
        assert await asyncio.to_thread(is_ready, address)


def test_nobody_there() -> None:
    assert list_members("127.0.0.1:1") == []
    assert not is_ready("127.0.0.1:1")
