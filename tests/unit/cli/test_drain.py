"""`disagg drain` against real servers: of a balancer, and of members that it knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from cli.main import main
from disagg.admin import AdminServicer
from disagg.v1 import admin_pb2_grpc
from tests.fakes.front_door import front_door


@dataclass
class Process:
    """A process with work: a call fewer each time that it is asked to drain."""

    running: int = 0
    is_draining: bool = False
    address: str = ""

    async def begin_drain(self) -> None:
        self.is_draining = True
        self.running = max(0, self.running - 1)

    async def end_drain(self) -> None:
        self.is_draining = False


@asynccontextmanager
async def process(running: int) -> AsyncIterator[Process]:
    made, server = Process(running), grpc.aio.server()
    admin = AdminServicer(
        role="decode",
        version="0",
        fingerprint=b"",
        begin_drain=made.begin_drain,
        end_drain=made.end_drain,
        running=lambda: made.running,
        statistics=dict,
    )
    admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["drain", *arguments])


@pytest.mark.medium
async def test_groups_members_and_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    async with front_door(announce=False) as door, process(3) as first, process(1) as second:
        balancer = door.balancer.host
        for member, known in zip(door.members, (first, second), strict=True):
            member.address = known.address
            await member.announce(door.channel)
        at = ("--address", balancer.address)

        assert await run("g", *at) == 0  # the group of both
        assert capsys.readouterr().out.splitlines() == [
            f"p0  {first.address}  drains, 2 calls left",
            f"d0  {second.address}  drains, 0 calls left",
        ]
        assert (first.is_draining, second.is_draining) == (True, True)
        assert await run("d0", "--undo", *at) == 0
        assert (first.is_draining, second.is_draining) == (True, False)
        assert "takes work again" in capsys.readouterr().out

        assert await run("nobody", *at) == 1
        assert "no member or group 'nobody'; its groups are: g" in capsys.readouterr().err

        assert await run(balancer.address, "--json") == 0  # a balancer is a process like another
        assert json.loads(capsys.readouterr().out) == {
            "draining": True,
            "processes": [{"target": balancer.address, "address": balancer.address, "running": 0}],
        }
        assert balancer.is_draining
        assert await run(balancer.address, "--undo") == 0
        assert not balancer.is_draining


@pytest.mark.medium
async def test_waiting_ends_with_the_work_or_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    async with process(2) as known:
        assert await run(known.address, "--wait", "60") == 0
        assert "0 calls left" in capsys.readouterr().out
        known.running = 1_000
        assert await run(known.address, "--wait", "0.01") == 1
        assert "calls left" in capsys.readouterr().out


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1: UNAVAILABLE" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--wait", "0"], ["--wait", "5", "--undo"]])
def test_flags_that_make_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "127.0.0.1:1", *arguments]) == 2
    assert "--wait" in capsys.readouterr().err


@pytest.mark.medium
async def test_a_balancer_with_keys_takes_the_key_of_an_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, mine, tenants = tmp_path / "keys", tmp_path / "mine", tmp_path / "tenants"
    keys.write_text(f"{'c' * 32}\na {'a' * 32}\n")
    mine.write_text("c" * 32)
    tenants.write_text(f"a {'a' * 32}")
    async with front_door(auth={"keys_file": str(keys)}) as door:
        address = door.balancer.host.address
        for flags in ([], ["--api-key-file", str(tenants)]):
            assert await run(address, *flags) == 1
            assert "do --api-key-file and the settings tls.*" in capsys.readouterr().err
        states = [door.balancer.host.is_draining]
        for flag in ([], ["--undo"]):
            assert await run(address, "--api-key-file", str(mine), *flag) == 0
            states.append(door.balancer.host.is_draining)
        assert states == [False, True, False]
