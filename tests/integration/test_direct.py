"""Callers that stream from decode themselves, against the whole system as processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing

import grpc.aio
import pytest

from cli.local.launcher import System
from client import AsyncClient, AsyncDirectClient, ChatMessage, Sampling
from client.wire import make_request
from disagg.v1 import routing_pb2, routing_pb2_grpc
from tests.fakes.holdings import held, nothing_is_held
from tests.fakes.processes import ROOT
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(200)]

GOLDEN = json.loads((ROOT / "models" / "tiny-v4" / "golden.json").read_text(encoding="utf-8"))
CASES = GOLDEN["cases"]
LONG = next(case for case in CASES if len(case["input_ids"]) == 350)
GREEDY = Sampling(max_tokens=64, ignore_eos=True)
TTL_S = 2


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    flags = {
        "decode": ["--fetch-credit-ttl-s", str(TTL_S)],
        "prefill": ["--store-claim-ttl-s", str(TTL_S)],
    }
    with launched(decode_ranks=2, flags=flags) as running:
        yield running


async def test_golden_prompts_and_samples_are_the_relayed_ones(system: System) -> None:
    sampled = Sampling(temperature=0.9, seed=11, max_tokens=48, ignore_eos=True, logprobs=1)
    prompt = [ChatMessage(role="user", content="Good morrow, my gentle lord.")]
    async with (
        AsyncDirectClient(system.address, timeout_s=60.0) as direct,
        AsyncClient(system.address, timeout_s=60.0) as relayed,
    ):
        answers = await asyncio.gather(
            *(direct.generate(case["input_ids"], sampling=GREEDY) for case in CASES[:4])
        )
        for case, whole in zip(CASES, answers, strict=False):
            assert list(whole.token_ids) == case["greedy_ids"], case["name"]
        one = await direct.generate(prompt, sampling=sampled)
        other = await relayed.generate(prompt, sampling=sampled)
    assert (one.token_ids, one.logprobs, one.text) == (
        other.token_ids,
        other.logprobs,
        other.text,
    )
    await nothing_is_held(system)


async def test_a_stream_that_is_dropped_and_taken_up_again(system: System) -> None:
    async with AsyncDirectClient(system.address, timeout_s=60.0) as client:
        got: list[int] = []
        stream = client.stream(LONG["input_ids"], sampling=GREEDY, request_id="taken-up")
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                got += chunk.token_ids
                if len(got) >= 5:
                    break
        rest = client.stream(
            LONG["input_ids"], sampling=GREEDY, request_id="taken-up", last_seq=len(got)
        )
        async for chunk in rest:
            got += chunk.token_ids
    assert got == LONG["greedy_ids"]
    await nothing_is_held(system)


@pytest.mark.parametrize("tokens", [1, 2, 9])
async def test_leaving_frees_everything(system: System, tokens: int) -> None:
    sampling = Sampling(max_tokens=2000, ignore_eos=True)
    async with AsyncDirectClient(system.address, timeout_s=60.0) as client:
        stream = client.stream(LONG["input_ids"], sampling=sampling)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                if chunk.seq >= tokens:
                    break
    # A hand-off whose decode was cancelled before it began to read lapses a moment later.
    await at_rest(system)


async def test_a_caller_that_never_comes_holds_nothing_for_long(system: System) -> None:
    asked = make_request(
        LONG["input_ids"],
        request_id="never-comes",
        model="",
        sampling=GREEDY,
        last_seq=0,
        cache_salt="",
        priority=None,
    )
    async with grpc.aio.insecure_channel(system.address) as channel:
        stub = routing_pb2_grpc.RoutingServiceStub(channel)
        response = await stub.Route(routing_pb2.RouteRequest(generate=asked), timeout=60)
    assert response.decode.request.credit_id
    state = await asyncio.to_thread(held, system)
    assert state["leases"] == 1  # the hand-off waits for its reader
    assert state["requests"] == 0
    await at_rest(system)
    # Nobody was hurt, and the same request can still be answered.
    async with AsyncDirectClient(system.address, timeout_s=60.0) as client:
        whole = await client.generate(LONG["input_ids"], sampling=GREEDY, request_id="never-comes")
    assert list(whole.token_ids) == LONG["greedy_ids"]


async def at_rest(system: System) -> None:
    """Waits for what lapses by itself: twice its time, and what heartbeats take."""
    for _ in range(8):
        try:
            await nothing_is_held(system)
            return
        except AssertionError:
            continue
    await nothing_is_held(system)
