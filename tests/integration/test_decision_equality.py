"""A live run of real processes, written down and decided again: the same, one by one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import grpc.aio
import pytest

from client import AsyncClient, Sampling
from disagg.v1 import admin_pb2, admin_pb2_grpc, membership_pb2, membership_pb2_grpc
from simulator.replay import replay_file
from tests.fakes.holdings import nothing_is_held
from tests.fakes.processes import ROOT
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(240)]

CASES = json.loads((ROOT / "models" / "tiny-v4" / "golden.json").read_text(encoding="utf-8"))[
    "cases"
]
SHORT = Sampling(max_tokens=12, ignore_eos=True)
ROUND = 24


async def test_a_recorded_run_is_decided_again_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    flags = [
        *("--routing-record-path", str(path)),
        *("--routing-boundaries", "[100, 300]"),  # so that prompts of the model fill three classes
        *("--routing-round-s", "0.2"),
        *("--routing-starvation-s", "0.05"),
    ]
    with launched(prefill_ranks=2, decode_ranks=3, flags={"balancer": flags}) as system:
        async with (
            AsyncClient(system.address, timeout_s=120.0) as client,
            grpc.aio.insecure_channel(system.address) as channel,
        ):
            await _ask(client, "before")
            drained = await _drain_one_decode_rank(channel)
            await _ask(client, "after")
        await nothing_is_held(system)
    equality = replay_file(path)
    assert equality.first_difference == ""
    assert equality.equal == equality.decisions
    placed = _placed(path)
    assert len(placed) >= 2 * ROUND
    chosen = Counter(decode_id for _, _, decode_id, _ in placed)
    assert len(chosen) == 3
    assert len({prefill_id for _, prefill_id, _, _ in placed}) == 2
    assert drained in {decode_id for name, _, decode_id, _ in placed if name.startswith("before")}
    assert drained not in {decode_id for name, _, decode_id, _ in placed if name[:5] == "after"}
    # Prompts that came before are known to be stored when they come again.
    assert any(cached for name, _, _, cached in placed if name.startswith("after"))


async def _ask(client: AsyncClient, name: str) -> None:
    """Many requests at once, of all lengths there are; golden answers throughout."""

    async def one(number: int) -> None:
        case = CASES[number % len(CASES)]
        answer = await client.generate(
            case["input_ids"], request_id=f"{name}-{number}", sampling=SHORT
        )
        assert list(answer.token_ids) == case["greedy_ids"][:12]

    async with asyncio.TaskGroup() as group:
        for number in range(ROUND):
            group.create_task(one(number))


async def _drain_one_decode_rank(channel: grpc.aio.Channel) -> str:
    """Drains a rank, and waits until the balancer has heard of it."""
    members = membership_pb2_grpc.MembershipServiceStub(channel)
    request = membership_pb2.ListMembersRequest(role=membership_pb2.MEMBER_ROLE_DECODE)
    first = (await members.ListMembers(request, timeout=10)).members[0]
    async with grpc.aio.insecure_channel(first.address) as rank:
        await admin_pb2_grpc.AdminServiceStub(rank).Drain(admin_pb2.DrainRequest(), timeout=30)
    for _ in range(200):
        listed = (await members.ListMembers(request, timeout=10)).members
        if any(member.draining for member in listed if member.member_id == first.member_id):
            return str(first.member_id)
        await asyncio.sleep(0.05)
    raise AssertionError(f"{first.member_id} never drained")


def _placed(path: Path) -> list[tuple[str, str, str, int]]:
    """Request, prefill, decode and stored tokens of every decision that found a pair."""
    calls = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [
        (
            call["request"]["request_id"],
            call["outcome"]["prefill_id"],
            call["outcome"]["decode_id"],
            call["request"]["cached_tokens"],
        )
        for call in calls
        if call["call"] == "place" and call["outcome"]["verdict"] == "place"
    ]
