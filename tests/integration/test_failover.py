"""A decode group is killed while it streams: the transcripts are those of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from cli.local.launcher import System
from cli.local.members import list_members
from client import AsyncClient, Completion, Sampling
from client.wire import completion_of
from tests.fakes.processes import ROOT, ServiceProcess, service
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(200)]

MODEL = ROOT / "models" / "tiny-v4"
GOLDEN = json.loads((MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]
PROMPT = next(case for case in GOLDEN if len(case["input_ids"]) == 350)


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with launched(decode_ranks=1) as running:
        yield running


@pytest.fixture
def victim(system: System) -> Iterator[ServiceProcess]:
    """A second decode group, to be killed."""
    flags = ["--store", system.store_url, "--model", str(MODEL), "--balancer", system.address]
    with service("decode_service", *flags, "--group", "decode-1", "--ranks", "1") as group:
        group.wait_serving(1)
        for _ in range(400):
            ready = [m.name for m in list_members(system.address) if m.state == "ready"]
            if any("decode-1" in name for name in ready):
                break
            group.process.poll()
            asyncio.run(asyncio.sleep(0.05))
        yield group


@pytest.mark.parametrize("after", [2, 40])
async def test_killing_a_decode_group_changes_no_token(
    system: System, victim: ServiceProcess, after: int
) -> None:
    # Long enough that decode has not run far ahead of its reader when it dies.
    greedy = Sampling(max_tokens=400, ignore_eos=True)
    sampled = Sampling(max_tokens=400, ignore_eos=True, temperature=0.8, top_p=0.9, seed=5)
    ids = PROMPT["input_ids"]
    async with AsyncClient(system.address, timeout_s=90.0) as client:
        undisturbed = [await client.generate(ids, sampling=kind) for kind in (greedy, sampled)]
        streaming = asyncio.Barrier(3)

        async def stream(sampling: Sampling) -> Completion:
            chunks = []
            async for chunk in client.stream(ids, sampling=sampling):
                chunks.append(chunk)
                if chunk.seq == after and chunk.token_ids:
                    await streaming.wait()  # both are in the middle of it
            return completion_of(chunks)

        async def kill() -> None:
            await streaming.wait()
            victim.process.kill()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(stream(kind)) for kind in (greedy, sampled)]
            group.create_task(kill())
    first, second = answers = [task.result() for task in tasks]
    assert list(first.token_ids[:64]) == PROMPT["greedy_ids"]
    assert [answer.token_ids for answer in answers] == [good.token_ids for good in undisturbed]
    assert [answer.text for answer in answers] == [good.text for good in undisturbed]
    # One request ran in each group, so one of them had to move.
    assert sorted((first.attempts, second.attempts)) == [1, 2]
    assert {first.timing.decode_member, second.timing.decode_member} <= {
        member.name for member in list_members(system.address) if "decode-0" in member.name
    }
