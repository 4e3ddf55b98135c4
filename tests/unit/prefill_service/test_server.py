"""The wire face of prefill: messages in and out, and every refusal with its code and reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest

from disagg.v1 import common_pb2, prefill_pb2, prefill_pb2_grpc
from kvstore.errors import StoreDown, StoreFull
from prefill_service.server import SERVICE, WORK, PrefillServicer, error_map
from runtime import status
from runtime.errors import DisaggError, Reason
from tests.fakes.services import (
    BLOCK,
    Rig,
    hold_steps,
    prompt,
    running_rig,
    serving,
    tokens,
    until,
)
from tests.fakes.toy_runner import expected_tokens

if TYPE_CHECKING:
    from disagg.v1.prefill_pb2_grpc import PrefillServiceAsyncStub as Stub

CODE = grpc.StatusCode


@asynccontextmanager
async def face(**options: int) -> AsyncIterator[tuple[Rig, Stub]]:
    async with running_rig(**options) as rig:  # type: ignore[arg-type]

        def register(server: grpc.aio.Server) -> None:
            servicer = PrefillServicer(rig.prefill, default_timeout_s=20.0)
            prefill_pb2_grpc.add_PrefillServiceServicer_to_server(servicer, server)

        async with serving("prefill", [SERVICE], WORK, error_map(), register) as channel:
            yield rig, prefill_pb2_grpc.PrefillServiceStub(channel)


def wire_request(length: int = 37, **fields: object) -> prefill_pb2.PrefillRequest:
    sampling = common_pb2.SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
    return prefill_pb2.PrefillRequest(
        **{
            "request_id": "r-1",
            "attempt": 1,
            "token_ids": tokens(length),
            "sampling": sampling,
            **fields,
        }
    )


async def refused(stub: Stub, request: prefill_pb2.PrefillRequest) -> DisaggError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Prefill(request, timeout=20):
            pass
    return status.from_rpc_error(caught.value)


def test_the_work_of_the_service_is_its_method() -> None:
    assert SERVICE == "disagg.v1.PrefillService"
    assert {"/disagg.v1.PrefillService/Prefill"} == WORK


async def test_events_become_messages() -> None:
    async with face() as (rig, stub):
        request = wire_request()
        request.sampling.logprobs = 2
        events = [event async for event in stub.Prefill(request, timeout=20)]
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds == ["admitted", *["chunk_done"] * 5, "first_token", "committed"]
        first, committed = events[-2].first_token, events[-1].committed
        want = expected_tokens(tokens(37), prompt(tokens(37)).sampling)
        assert first.token_id == want[0]
        assert first.finish_reason == common_pb2.FINISH_REASON_UNSPECIFIED
        assert first.logprobs.top[0].token_id == want[0]
        assert first.compute_us > 0
        assert committed.ticket.num_tokens == 37
        assert committed.ticket.fingerprint == rig.layout.fingerprint
        assert committed.ticket.remaining.seconds > 0
        assert committed.published_bytes == 9 * 4 * BLOCK + 5 * 16 + 4 + 16
        again = [event async for event in stub.Prefill(wire_request(request_id="r-2"), timeout=20)]
        hit = next(event.prefix_hit for event in again if event.HasField("prefix_hit"))
        assert (hit.cached_tokens, hit.bytes) == (36, 9 * 4 * BLOCK + 16)
        for event in (events[-1], again[-1]):
            rig.store.abort(event.committed.ticket.handoff_id)
        await rig.assert_at_rest()


async def test_stored_blocks_are_reported_to_those_who_ask() -> None:
    async with face() as (rig, stub):
        async for event in stub.Prefill(wire_request(), timeout=20):
            assert not event.HasField("blocks_stored")
        asked = wire_request(request_id="r-2", report_stored=True)
        gate, reports = hold_steps(rig), []
        async for event in stub.Prefill(asked, timeout=20):
            if event.HasField("blocks_stored"):
                reports.append(event.blocks_stored.num_blocks)
                gate.set()
        assert reports[0] == 9
        for record in rig.store.audit():
            rig.store.abort(record.handoff_id)
        await rig.assert_at_rest()


async def test_a_first_token_that_ends_it_has_a_reason_and_no_ticket() -> None:
    async with face() as (rig, stub):
        request = wire_request()
        request.sampling.max_tokens = 1
        events = [event async for event in stub.Prefill(request, timeout=20)]
        assert events[-2].first_token.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert not events[-1].committed.HasField("ticket")
        await rig.assert_at_rest()


REFUSALS = [
    ({"request_id": ""}, CODE.INVALID_ARGUMENT, Reason.BAD_REQUEST, "request_id is ''"),
    ({"attempt": 0}, CODE.INVALID_ARGUMENT, Reason.BAD_REQUEST, "attempt is 0"),
    ({"token_ids": []}, CODE.INVALID_ARGUMENT, Reason.BAD_REQUEST, "token_ids is empty"),
    (
        {"token_ids": [3, 2**32 - 1]},
        CODE.INVALID_ARGUMENT,
        Reason.BAD_REQUEST,
        "token_ids[1] is 4294967295: give ids in [0, 64)",
    ),
    (
        {"token_ids": [2] * 200},
        CODE.INVALID_ARGUMENT,
        Reason.PROMPT_TOO_LONG,
        "the prompt has 200 tokens, but the context is 200 with the answer: give at most 199",
    ),
    ({"temperature": -0.5}, CODE.INVALID_ARGUMENT, Reason.BAD_SAMPLING, "temperature is -0.5"),
    (
        {"temperature": float("nan")},
        CODE.INVALID_ARGUMENT,
        Reason.BAD_SAMPLING,
        "temperature is nan",
    ),
    ({"top_p": 0.0}, CODE.INVALID_ARGUMENT, Reason.BAD_SAMPLING, "top_p is 0.0"),
    ({"min_p": float("inf")}, CODE.INVALID_ARGUMENT, Reason.BAD_SAMPLING, "min_p is inf"),
    ({"max_tokens": 0}, CODE.INVALID_ARGUMENT, Reason.BAD_REQUEST, "sampling.max_tokens is 0"),
    ({"logprobs": 21}, CODE.INVALID_ARGUMENT, Reason.BAD_SAMPLING, "logprobs is 21"),
]


@pytest.mark.parametrize(("changes", "code", "reason", "message"), REFUSALS, ids=str)
async def test_bad_input_has_a_code_a_reason_and_a_way_out(
    changes: dict[str, object], code: grpc.StatusCode, reason: Reason, message: str
) -> None:
    async with face() as (rig, stub):
        request = wire_request()
        for name, value in changes.items():
            if name in common_pb2.SamplingParams.DESCRIPTOR.fields_by_name:
                setattr(request.sampling, name, value)
            elif name == "token_ids":
                del request.token_ids[:]
                request.token_ids.extend(value)  # type: ignore[arg-type]
            else:
                setattr(request, name, value)
        error = await refused(stub, request)
        assert (error.code, error.reason) == (code, reason)
        assert message in error.message
        await rig.assert_at_rest()


async def test_the_stores_failures_have_their_codes() -> None:
    async with face() as (rig, stub):
        rig.backend.failures["lookup"] = StoreDown("unix:///x", "refused")
        error = await refused(stub, wire_request())
        assert (error.code, error.reason) == (CODE.UNAVAILABLE, Reason.STORE_DOWN)
        assert error.retry_after_s == 1.0
        rig.backend.failures = {"put": StoreFull("unix:///x", "maxmemory")}
        error = await refused(stub, wire_request())
        assert (error.code, error.reason) == (CODE.RESOURCE_EXHAUSTED, Reason.POOL_FULL)
        await rig.assert_at_rest()


async def test_a_running_id_is_refused() -> None:
    async with face() as (rig, stub):
        rig.backend.stages["lookup"].close()
        running = stub.Prefill(wire_request(), timeout=20)
        await rig.backend.stages["lookup"].wait_reached()
        error = await refused(stub, wire_request())
        assert (error.code, error.reason) == (CODE.ALREADY_EXISTS, Reason.DUPLICATE_REQUEST)
        running.cancel()
        rig.backend.stages["lookup"].open()
        await rig.assert_at_rest()


async def test_a_full_line_is_refused_with_a_hint() -> None:
    async with face(prefill_bytes=1) as (rig, stub):
        rig.backend.stages["lookup"].close()
        calls = [stub.Prefill(wire_request(request_id=f"r-{i}"), timeout=20) for i in range(3)]
        await until(lambda: rig.prefill.statistics().waiting_for_bytes == 2)
        error = await refused(stub, wire_request(request_id="r-9"))
        assert (error.code, error.reason) == (CODE.RESOURCE_EXHAUSTED, Reason.QUEUE_FULL)
        assert error.retry_after_s is not None
        for call in calls:
            call.cancel()
        rig.backend.stages["lookup"].open()
        await rig.assert_at_rest()


async def test_the_deadline_of_the_caller_ends_the_work() -> None:
    async with face() as (rig, stub):
        rig.backend.stages["lookup"].close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Prefill(wire_request(), timeout=0.05):
                pass
        assert caught.value.code() is CODE.DEADLINE_EXCEEDED
        rig.backend.stages["lookup"].open()
        await rig.assert_at_rest()


async def test_a_caller_who_hangs_up_after_the_commit_leaves_no_lease() -> None:
    async with face() as (rig, stub):
        rig.backend.stages["commit"].close()
        call = stub.Prefill(wire_request(), timeout=20)
        reading = asyncio.create_task(_drop(call))
        await rig.backend.stages["commit"].wait_reached()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        rig.backend.stages["commit"].open()
        await rig.assert_at_rest()


async def _drop(call: grpc.aio.UnaryStreamCall[object, object]) -> None:
    async for _ in call:
        pass


async def test_a_dead_engine_sends_callers_elsewhere() -> None:
    async with face() as (rig, stub):
        rig.prefill_runner.fail_run = RuntimeError("device lost")
        error = await refused(stub, wire_request())
        assert (error.code, error.reason) == (CODE.UNAVAILABLE, Reason.PEER_GONE)
        error = await refused(stub, wire_request(request_id="r-2"))
        assert (error.code, error.reason) == (CODE.UNAVAILABLE, Reason.PEER_GONE)
        assert rig.prefill_engine.failure is not None
        assert rig.store.audit() == []
