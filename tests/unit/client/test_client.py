"""Both clients against a whole balancer with scripted members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from client import (
    AsyncClient,
    ChatMessage,
    Client,
    ClientError,
    Completion,
    InvalidArgument,
    Sampling,
)
from runtime.errors import Unavailable
from tests.fakes.front_door import PROMPT, FrontDoor, front_door
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
SIX = Sampling(max_tokens=6)


async def in_thread(door: FrontDoor, work: Callable[[Client], Any], **options: Any) -> Any:
    """Runs blocking client code while the server goes on in this loop."""

    def run() -> Any:
        with Client(door.balancer.host.address, **options) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_the_blocking_client_gets_the_whole_answer() -> None:
    async with front_door() as door:
        whole: Completion = await in_thread(
            door, lambda client: client.generate(PROMPT, sampling=SIX, request_id="mine")
        )
        assert list(whole.token_ids) == answer(PROMPT, 6)
        assert whole.text == door.balancer.codec.decode(answer(PROMPT, 6))
        assert (whole.request_id, whole.finish_reason, whole.attempts) == ("mine", "length", 1)
        assert whole.usage.prompt_tokens == 4
        chunks = await in_thread(door, lambda c: list(c.stream(PROMPT, sampling=SIX)))
        assert [chunk.seq for chunk in chunks] == [1, 2, 3, 4, 5, 6, 6]
        assert chunks[0].seed is not None
        assert chunks[-1].finish_reason == "length"


async def test_the_asyncio_client_gets_the_same() -> None:
    async with front_door() as door, AsyncClient(door.balancer.host.address) as client:
        whole = await client.generate(PROMPT, sampling=SIX)
        assert list(whole.token_ids) == answer(PROMPT, 6)
        chat = await client.generate([ChatMessage(role="user", content="Hi")], sampling=SIX)
        assert chat.usage.prompt_tokens == len(door.prefills[0].calls[1].token_ids)


async def test_small_calls() -> None:
    async with front_door() as door:
        ids = await in_thread(door, lambda client: client.tokenize("ROMEO:\n"))
        assert ids == [0, 1582, 32, 205]
        assert await in_thread(door, lambda client: client.detokenize(ids)) == "ROMEO:\n"
        assert await in_thread(door, lambda client: client.models()) == ["tiny-v4"]
        assert not await in_thread(door, lambda client: client.cancel("nobody"))
        async with AsyncClient(door.balancer.host.address) as client:
            assert await client.tokenize("ROMEO:\n") == ids
            assert await client.detokenize(ids) == "ROMEO:\n"
            assert await client.models() == ["tiny-v4"]
            assert not await client.cancel("nobody")


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_broken_stream_is_resumed_as_one(blocking: bool) -> None:
    limits = {"decode_retries": 0, "suspect_s": 0.01}
    async with front_door(limits=limits) as door:
        door.decodes[0].scripts.append(Script(error=Unavailable("gone"), after_tokens=2))
        if blocking:
            whole = await in_thread(door, lambda c: c.generate(PROMPT, sampling=SIX))
        else:
            async with AsyncClient(door.balancer.host.address) as client:
                whole = await client.generate(PROMPT, sampling=SIX)
        assert list(whole.token_ids) == answer(PROMPT, 6)
        assert whole.text == door.balancer.codec.decode(answer(PROMPT, 6))
        assert len(door.decodes[0].calls) == 2


@pytest.mark.parametrize("blocking", [True, False])
async def test_resumption_is_bounded_and_says_how_far_it_came(blocking: bool) -> None:
    limits = {"decode_retries": 0, "suspect_s": 0.01}
    async with front_door(limits=limits) as door:
        door.decodes[0].scripts.extend(
            Script(error=Unavailable("gone"), after_tokens=1) for _ in range(9)
        )
        address = door.balancer.host.address

        async def ask() -> Completion:
            if blocking:
                call = lambda c: c.generate(PROMPT, sampling=SIX)  # noqa: E731 - one expression
                return await in_thread(door, call, max_resumes=1)
            async with AsyncClient(address, max_resumes=1) as client:
                return await client.generate(PROMPT, sampling=SIX)

        with pytest.raises(ClientError) as caught:
            await ask()
        assert caught.value.reason == "STREAM_INTERRUPTED"
        assert caught.value.last_seq == 2
        assert len(door.decodes[0].calls) == 2


async def test_a_caller_resumes_by_hand() -> None:
    async with front_door() as door, AsyncClient(door.balancer.host.address) as client:
        stream = client.stream(PROMPT, sampling=SIX, request_id="r", last_seq=4)
        chunks = [chunk async for chunk in stream]
        ids = [token for chunk in chunks for token in chunk.token_ids]
        assert ids == answer(PROMPT, 6)[4:]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 6


async def test_closing_a_stream_cancels_the_request() -> None:
    async with front_door() as door, AsyncClient(door.balancer.host.address) as client:
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=2))
        async with aclosing(client.stream(PROMPT, sampling=SIX)) as chunks:
            async for chunk in chunks:
                if chunk.seq == 3:
                    break
        await door.settle()
        assert door.decodes[0].cancelled == 1


async def test_cancelling_by_id_ends_the_stream_with_abort() -> None:
    async with front_door() as door, AsyncClient(door.balancer.host.address) as client:
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=2))
        running = asyncio.gather(client.generate(PROMPT, sampling=SIX, request_id="r"))
        await door.decodes[0].reached.wait()
        assert await client.cancel("r")
        [whole] = await running
        assert whole.finish_reason == "abort"
        assert list(whole.token_ids) == answer(PROMPT, 3)


async def test_bad_requests_are_not_repeated() -> None:
    async with front_door() as door:
        with pytest.raises(ClientError) as caught:
            await in_thread(door, lambda c: c.generate("x", sampling=Sampling(temperature=-1.0)))
        assert caught.value.reason == "BAD_SAMPLING"
        assert "sampling.temperature" in caught.value.fields


async def test_a_taken_id_is_the_callers_mistake() -> None:
    async with front_door() as door, AsyncClient(door.balancer.host.address) as client:
        door.decodes[0].scripts.append(Script(hang=True))
        running = asyncio.gather(
            client.generate(PROMPT, sampling=SIX, request_id="r"), return_exceptions=True
        )
        await door.decodes[0].reached.wait()
        with pytest.raises(ClientError) as caught:
            await client.generate(PROMPT, sampling=SIX, request_id="r")
        assert caught.value.reason == "DUPLICATE_REQUEST"
        await client.cancel("r")
        await running


async def test_deadlines_and_absent_servers() -> None:
    async with front_door() as door, AsyncClient(door.balancer.host.address) as client:
        door.decodes[0].scripts.append(Script(hang=True))
        with pytest.raises(ClientError) as caught:
            await client.generate(PROMPT, sampling=SIX, timeout_s=0.1)
        assert caught.value.code == "DEADLINE_EXCEEDED"
    async with AsyncClient("127.0.0.1:1", max_resumes=0) as client:
        with pytest.raises(ClientError) as caught:
            await client.generate(PROMPT)
        assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "")
        with pytest.raises(ClientError):
            await client.models()


async def test_an_address_that_cannot_be_one() -> None:
    with pytest.raises(InvalidArgument, match=r"^address: character 1 is"):
        Client("\udcf0:1")
    with pytest.raises(InvalidArgument, match=r"^address: character 1 is"):
        AsyncClient("\udcf0:1")


@pytest.mark.medium
async def test_why_a_request_ran_where_it_ran() -> None:
    async with front_door(prefills=2) as door:
        await door.generate("r1")
        async with AsyncClient(door.balancer.host.address) as client:
            (decision,) = await client.explain("r1", what_if=True)
            assert await client.explain("unknown") == ()
        assert (decision.verdict, decision.class_name) == ("place", "<16K")
        assert decision.is_reproduced
        assert decision.prefill.chosen_id in ("p0", "p1")
        assert decision.changes is not None
