"""Route: what a caller gets, what it is refused, and what is left here afterwards: nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from disagg.v1 import (
    common_pb2,
    decode_pb2_grpc,
    generation_pb2,
    routing_pb2,
    routing_pb2_grpc,
)
from runtime.errors import DisaggError, Overloaded, Reason, Unavailable
from runtime.status import from_rpc_error
from tests.fakes.front_door import PROMPT, FrontDoor, front_door
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium


async def route(
    door: FrontDoor, *, generated: Any = (), last_attempt: int = 0, **fields: Any
) -> Any:
    """Calls Route; returns its response or the error of the tree."""
    fields = {"request_id": "r", "sampling": {"max_tokens": 6}, **fields}
    if not {"text", "chat"} & fields.keys():
        fields.setdefault("token_ids", {"ids": PROMPT})
    request = routing_pb2.RouteRequest(
        generate=generation_pb2.GenerateRequest(**fields),
        generated=generated,
        last_attempt=last_attempt,
    )
    try:
        return await routing_pb2_grpc.RoutingServiceStub(door.channel).Route(request, timeout=20)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


async def decoded(response: routing_pb2.RouteResponse) -> list[int]:
    async with grpc.aio.insecure_channel(response.decode.address) as channel:
        stub = decode_pb2_grpc.DecodeServiceStub(channel)
        ids = []
        async for message in stub.Decode(response.decode.request, timeout=20):
            ids += message.tokens.token_ids
    return ids


async def test_a_caller_gets_everything_it_needs_to_go_on() -> None:
    async with front_door() as door:
        response = await route(door, sampling={"max_tokens": 6, "seed": 7, "logprobs": 0})
        assert (response.request_id, response.attempt, response.seq) == ("r", 1, 1)
        assert list(response.token_ids) == answer(PROMPT, 1)
        assert [entry.logprob for entry in response.logprobs] == [-1.0]
        assert (response.seed, response.finish_reason) == (7, 0)
        assert response.usage.prompt_tokens == 4
        assert response.timing.prefill_member == "p0"
        assert response.decode.member_id == "d0"
        assert response.decode.address == door.decodes[0].address
        request = response.decode.request
        assert list(request.token_ids) == PROMPT
        assert request.ticket.handoff_id == "h-r-1"
        assert request.sampling.seed == 7
        # The slot is the caller's now, and nothing else is held here.
        assert door.decodes[0].credits == {request.credit_id}
        assert not len(door.balancer.running)
        assert door.store.aborted == []
        assert await decoded(response) == answer(PROMPT, 6)[1:]
        await door.settle()
        assert door.metric("disagg_requests_total", outcome="routed", reason="") == 1


async def test_what_exists_is_not_generated_again() -> None:
    async with front_door() as door:
        known = answer(PROMPT, 3)
        response = await route(door, generated=known, last_attempt=2)
        assert (response.attempt, response.seq) == (3, 4)
        assert list(response.token_ids) == answer(PROMPT, 4)[3:]
        assert list(door.prefills[0].calls[0].token_ids) == PROMPT + known
        assert door.prefills[0].calls[0].num_generated == 3
        assert await decoded(response) == answer(PROMPT, 6)[4:]
        await door.settle()


@pytest.mark.parametrize(
    ("script", "sampling", "reason"),
    [
        (Script(stop_at=1), {"max_tokens": 6}, common_pb2.FINISH_REASON_STOP),
        (Script(), {"max_tokens": 1}, common_pb2.FINISH_REASON_LENGTH),
        (Script(), {"max_tokens": 0}, common_pb2.FINISH_REASON_LENGTH),
    ],
)
async def test_an_answer_that_ends_at_once_has_no_decode(
    script: Script, sampling: dict[str, int], reason: int
) -> None:
    async with front_door() as door:
        door.prefills[0].scripts.append(script)
        response = await route(door, sampling=sampling)
        assert not response.HasField("decode")
        assert response.finish_reason == reason
        await door.settle()


REFUSED: list[tuple[dict[str, Any], Reason, str]] = [
    ({"sampling": {"stop": ["x"]}}, Reason.UNSUPPORTED_PARAMETER, "use Generate"),
    ({"generated": [5000]}, Reason.BAD_REQUEST, "generated[0]: token id 5000"),
    ({"generated": [5], "last_seq": 3}, Reason.BAD_REQUEST, "send 0"),
    ({"generated": [5] * 6}, Reason.BAD_REQUEST, "nothing is missing"),
    ({"text": ""}, Reason.BAD_REQUEST, "empty"),
    ({"request_id": "a b"}, Reason.BAD_REQUEST, "request_id"),
    ({"model": "gpt"}, Reason.UNKNOWN_MODEL, "use 'tiny-v4'"),
]


async def test_bad_requests_are_refused_before_anything_is_held() -> None:
    async with front_door() as door:
        for fields, reason, message in REFUSED:
            error = await route(door, **fields)
            assert isinstance(error, DisaggError), fields
            assert error.reason is reason
            assert message in error.message
        assert door.prefills[0].calls == []
        await door.settle()


async def test_a_failed_prefill_is_repeated_or_leaves_nothing() -> None:
    async with front_door(prefills=2, limits={"suspect_s": 0.01}) as door:
        for member in door.prefills:
            member.scripts.append(Script(error=Unavailable("gone"), after_tokens=1))
            break
        response = await route(door)
        assert response.HasField("decode")
        assert response.seq == len(response.token_ids)
        tokens = [*response.token_ids, *await decoded(response)]
        assert tokens == answer(PROMPT, 6)
        await door.settle()
    async with front_door(limits={"slot_wait_s": 0.0}) as door:
        door.decodes[0].refuse = Overloaded("full", reason=Reason.POOL_FULL)
        error = await route(door)
        assert isinstance(error, Overloaded)
        await door.settle()


async def test_who_leaves_while_the_prompt_computes_frees_everything() -> None:
    async with front_door() as door:
        door.prefills[0].scripts.append(Script(hang=True))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(route(door))
            await asyncio.wait_for(door.prefills[0].reached.wait(), 10)
            assert door.balancer.host.running == 1
            task.cancel()
        await door.settle()


async def test_no_new_route_while_draining() -> None:
    async with front_door() as door:
        await door.balancer.host.begin_drain()
        error = await route(door)
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.DRAINING
