"""Both direct clients against a whole balancer: the same tokens as by the relay, exactly once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from client import AsyncClient, AsyncDirectClient, ClientError, Completion, DirectClient, Sampling
from runtime.errors import InvalidRequest, NotFound, Reason, Unavailable
from tests.fakes.front_door import PROMPT, FrontDoor, front_door
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
SIX = Sampling(max_tokens=6)


async def generate(door: FrontDoor, *, blocking: bool, **fields: Any) -> Completion:
    """One answer, by either client."""
    address = door.balancer.host.address
    options = {"max_resumes": fields.pop("max_resumes", 3)}
    fields = {"sampling": SIX, **fields}
    if blocking:

        def run() -> Completion:
            with DirectClient(address, **options) as client:
                return client.generate(PROMPT, **fields)

        return await asyncio.to_thread(run)
    async with AsyncDirectClient(address, **options) as client:
        return await client.generate(PROMPT, **fields)


@pytest.mark.parametrize("blocking", [True, False])
async def test_the_same_answer_as_by_the_relay(blocking: bool) -> None:
    sampling = Sampling(max_tokens=6, logprobs=0, seed=3)
    async with front_door() as door:
        direct = await generate(door, blocking=blocking, sampling=sampling, request_id="d")
        async with AsyncClient(door.balancer.host.address) as client:
            relayed = await client.generate(PROMPT, sampling=sampling, request_id="r")
        assert direct.token_ids == relayed.token_ids == tuple(answer(PROMPT, 6))
        assert direct.text == relayed.text
        assert direct.logprobs == relayed.logprobs
        assert (direct.seed, direct.finish_reason, direct.usage) == (
            relayed.seed,
            relayed.finish_reason,
            relayed.usage,
        )
        assert direct.timing.prefill_member == "p0"
        await door.settle()
        assert door.metric("disagg_requests_total", outcome="routed", reason="") == 1


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("after_tokens", [0, 1, 3])
async def test_a_broken_stream_goes_on_behind_its_last_token(
    blocking: bool, after_tokens: int
) -> None:
    async with front_door(decodes=2) as door:
        for member in door.decodes:
            member.scripts.append(Script(error=Unavailable("gone"), after_tokens=after_tokens))
        whole = await generate(door, blocking=blocking, request_id="r")
        assert list(whole.token_ids) == answer(PROMPT, 6)
        assert whole.attempts in (2, 3)
        calls = [call for member in door.decodes for call in member.calls]
        # Nothing that was received is generated again.
        assert sorted(call.num_generated for call in calls)[1] == 1 + after_tokens
        await door.settle()


BREAKS: list[tuple[Script, int]] = [
    (Script(end=True, after_tokens=2), 2),
    (Script(twice=True), 1),
    (Script(skip=4), 2),
    (Script(stale_attempt=9), 2),
    (Script(error=NotFound("gone", reason=Reason.BLOCK_EVICTED)), 2),
]


@pytest.mark.parametrize(("script", "attempts"), BREAKS)
async def test_streams_that_lie_are_put_right(script: Script, attempts: int) -> None:
    async with front_door() as door:
        door.decodes[0].scripts.append(script)
        whole = await generate(door, blocking=False)
        assert list(whole.token_ids) == answer(PROMPT, 6)
        assert whole.attempts == attempts
        await door.settle()


@pytest.mark.parametrize("blocking", [True, False])
async def test_resumption_is_bounded_and_errors_of_ours_are_not_repeated(blocking: bool) -> None:
    async with front_door() as door:
        door.decodes[0].scripts.extend(
            Script(error=Unavailable("gone"), after_tokens=1) for _ in range(9)
        )
        with pytest.raises(ClientError) as caught:
            await generate(door, blocking=blocking, max_resumes=1)
        assert (caught.value.code, caught.value.last_seq) == ("UNAVAILABLE", 4)
        assert len(door.decodes[0].calls) == 2
        await door.settle()
        door.decodes[0].scripts.clear()
        door.decodes[0].scripts.append(Script(error=InvalidRequest("no")))
        with pytest.raises(ClientError, match="no"):
            await generate(door, blocking=blocking)
        with pytest.raises(ClientError, match="use Generate"):
            await generate(door, blocking=blocking, sampling=Sampling(stop=("x",)))
        await door.settle()


async def test_a_caller_resumes_by_hand() -> None:
    async with front_door() as door, AsyncDirectClient(door.balancer.host.address) as client:
        stream = client.stream(PROMPT, sampling=SIX, request_id="r", last_seq=4)
        chunks = [chunk async for chunk in stream]
        ids = [token for chunk in chunks for token in chunk.token_ids]
        assert ids == answer(PROMPT, 6)[4:]
        assert chunks[-1].text == door.balancer.codec.decode(ids)
        await door.settle()


async def test_an_answer_of_one_token_never_sees_decode() -> None:
    async with front_door() as door:
        for max_tokens in (0, 1):
            whole = await generate(door, blocking=False, sampling=Sampling(max_tokens=max_tokens))
            assert (len(whole.token_ids), whole.finish_reason) == (max_tokens, "length")
        assert door.decodes[0].calls == []
        await door.settle()


@pytest.mark.parametrize("tokens", [0, 1, 3])
async def test_leaving_frees_the_slot(tokens: int) -> None:
    async with front_door() as door, AsyncDirectClient(door.balancer.host.address) as client:
        member = door.decodes[0]
        member.scripts.append(Script(hang=True, after_tokens=tokens))
        async with aclosing(client.stream(PROMPT, sampling=SIX)) as stream:
            for _ in range(1 + tokens):
                await anext(stream)
            await asyncio.wait_for(member.reached.wait(), 10)
        await door.settle()
        assert member.cancelled == 1


async def test_leaving_the_blocking_client_does_the_same() -> None:
    async with front_door() as door:
        member = door.decodes[0]
        member.scripts.append(Script(hang=True, after_tokens=1))

        def leave() -> None:
            with DirectClient(door.balancer.host.address) as client:
                stream = client.stream(PROMPT, sampling=SIX)
                next(stream)
                next(stream)
                stream.close()

        await asyncio.to_thread(leave)
        await door.settle()
        assert member.cancelled == 1
