"""The store, or the only decode group, goes away for a while: requests wait, and lose nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.local.children import Child
from cli.local.launcher import System
from client import AsyncClient, Completion, Sampling
from tests.fakes.processes import ROOT, service
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(200)]

MODEL = ROOT / "models" / "tiny-v4"
GOLDEN = json.loads((MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]
AWAY_S = 2.0
GREEDY = Sampling(max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    start = System._child

    def patient(self: System, name: str, module: str, *flags: str) -> Child:
        # A new group imports its libraries first, on a busy machine slowly.
        more = ["--limits-recovery-wait-s", "60"] if name == "balancer" else []
        return start(self, name, module, *flags, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(System, "_child", patient)
        with launched(decode_ranks=1) as running:
            yield running


async def _all(client: AsyncClient, rounds: int) -> list[Completion]:
    cases = GOLDEN[:8] * rounds
    answers = await asyncio.gather(
        *(client.generate(case["input_ids"], sampling=GREEDY) for case in cases)
    )
    for case, answer in zip(cases, answers, strict=True):
        assert list(answer.token_ids) == case["greedy_ids"], case["name"]
    return answers


async def test_a_store_that_is_away_for_seconds_costs_no_request(system: System) -> None:
    socket = Path(system.store_url.removeprefix("unix://"))
    away = socket.with_suffix(".away")
    connection = redis.Redis(unix_socket_path=str(socket))
    connection.ping()
    async with AsyncClient(system.address, timeout_s=90.0) as client:
        await _all(client, 1)
        os.rename(socket, away)
        try:
            connection.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            requests = asyncio.create_task(_all(client, 3))
            await asyncio.sleep(AWAY_S)
            late = asyncio.create_task(_all(client, 1))  # finds no member that says it is ready
            await asyncio.sleep(AWAY_S / 4)
        finally:
            os.rename(away, socket)
            connection.close()
        answers = await requests
        await late
    assert any(answer.attempts > 3 for answer in answers)  # more than the retries of a request


async def test_the_only_decode_group_may_be_killed_and_come_back(system: System) -> None:
    [decode] = [child for child in system.children if child.name == "decode"]
    flags = ["--store", system.store_url, "--model", str(MODEL), "--balancer", system.address]
    async with AsyncClient(system.address, timeout_s=90.0) as client:
        requests = asyncio.create_task(_all(client, 3))
        await asyncio.to_thread(_wait_for_hand_off, system)
        decode.kill()
        with service("decode_service", *flags, "--group", "decode-0", "--ranks", "1") as group:
            await asyncio.to_thread(group.wait_serving, 1)
            answers = await requests
    assert any(answer.attempts > 1 for answer in answers)
    system.children.remove(decode)  # or its end would be reported


def _wait_for_hand_off(system: System) -> None:
    """Until one is committed, so that decode has something to do."""
    with redis.Redis(unix_socket_path=system.store_url.removeprefix("unix://")) as connection:
        for _ in range(20_000):
            if any(connection.scan_iter("dkv1:h:*", count=1000)):
                return
    raise AssertionError("no hand-off was committed")
