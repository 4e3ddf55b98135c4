"""The wire face of decode: messages in and out, and every refusal with its code and reason."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import pytest
from structlog.testing import capture_logs

from decode_service.server import SERVICE, WORK, DecodeServicer, error_map
from disagg import wire
from disagg.v1 import common_pb2, decode_pb2, decode_pb2_grpc
from kvstore.errors import StoreDown
from runtime import status
from runtime.errors import DisaggError, Reason
from tests.fakes.services import (
    BLOCK,
    Rig,
    outcome,
    prompt,
    run_prefill,
    running_rig,
    serving,
    tokens,
    until,
)
from tests.fakes.toy_runner import expected_tokens

if TYPE_CHECKING:
    from disagg.v1.decode_pb2_grpc import DecodeServiceAsyncStub as Stub

CODE = grpc.StatusCode
PROMPT = tokens(37)
CREDIT_TTL_S = 5.0


@asynccontextmanager
async def face(**options: object) -> AsyncIterator[tuple[Rig, Stub]]:
    async with running_rig(**options) as rig:  # type: ignore[arg-type]

        def register(server: grpc.aio.Server) -> None:
            servicer = DecodeServicer(rig.decode, credit_ttl_s=CREDIT_TTL_S, default_timeout_s=20.0)
            decode_pb2_grpc.add_DecodeServiceServicer_to_server(servicer, server)

        async with serving("decode", [SERVICE], WORK, error_map(), register) as channel:
            yield rig, decode_pb2_grpc.DecodeServiceStub(channel)


async def handed_over(rig: Rig, *, request_id: str = "r-1", attempt: int = 1, max_tokens: int = 8):  # type: ignore[no-untyped-def]
    request = prompt(PROMPT, request_id=request_id, attempt=attempt, max_tokens=max_tokens)
    _, ticket = outcome(await run_prefill(rig, request))
    assert ticket is not None
    return decode_pb2.DecodeRequest(
        request_id=request_id,
        attempt=attempt,
        ticket=wire.ticket_message(ticket),
        token_ids=PROMPT,
        sampling=common_pb2.SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True),
    )


async def refused(stub: Stub, request: decode_pb2.DecodeRequest) -> DisaggError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Decode(request, timeout=20):
            pass
    return status.from_rpc_error(caught.value)


def test_reserving_is_work_and_releasing_is_not() -> None:
    assert SERVICE == "disagg.v1.DecodeService"
    assert {"/disagg.v1.DecodeService/Decode", "/disagg.v1.DecodeService/ReserveSlot"} == WORK


async def test_tokens_become_messages_with_attempt_and_number() -> None:
    async with face() as (rig, stub):
        request = await handed_over(rig, attempt=3)
        request.sampling.logprobs = 1
        events = [event async for event in stub.Decode(request, timeout=20)]
        assert events[0].WhichOneof("event") == "resumed"
        assert events[0].resumed.fetched_bytes == 9 * 4 * BLOCK + 4 + 16
        assert events[0].resumed.fetch_us > 0
        found: list[int] = []
        for event in (event.tokens for event in events[1:]):
            found += event.token_ids
            assert event.attempt == 3
            assert event.seq == 1 + len(found)
            assert len(event.logprobs) == len(event.token_ids)
        want = expected_tokens(PROMPT, prompt(PROMPT).sampling)
        assert found == want[1:]
        reasons = [event.tokens.finish_reason for event in events[1:]]
        assert reasons[-1] == common_pb2.FINISH_REASON_LENGTH
        assert set(reasons[:-1]) <= {common_pb2.FINISH_REASON_UNSPECIFIED}
        await rig.assert_at_rest()


async def test_blocks_are_read_ahead_over_the_wire() -> None:
    async with face() as (rig, stub):
        request = await handed_over(rig)
        ask = decode_pb2.ReserveSlotRequest(
            request_id="r-1", num_tokens=45, fingerprint=rig.layout.fingerprint
        )
        request.credit_id = (await stub.ReserveSlot(ask, timeout=20)).credit_id
        call = stub.Prefetch(timeout=20)
        begin = decode_pb2.PrefetchBegin(
            request_id="r-1", attempt=1, token_ids=PROMPT, credit_id=request.credit_id
        )
        await call.write(decode_pb2.PrefetchRequest(begin=begin))
        for num_blocks in (4, 9):
            stored = decode_pb2.PrefetchStored(num_blocks=num_blocks)
            await call.write(decode_pb2.PrefetchRequest(stored=stored))
            await until(lambda: rig.store.statistics().blocks_read == num_blocks)  # noqa: B023
        await call.done_writing()
        events = [event async for event in stub.Decode(request, timeout=20)]
        assert events[0].resumed.prefetched_bytes == 9 * 4 * BLOCK
        assert events[0].resumed.fetched_bytes == 9 * 4 * BLOCK + 4 + 16
        handed = await call
        assert (handed.num_blocks, handed.bytes) == (9, 9 * 4 * BLOCK)
        found = [token_id for event in events for token_id in event.tokens.token_ids]
        assert found == expected_tokens(PROMPT, prompt(PROMPT).sampling)[1:]
        await rig.assert_at_rest()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (None, "no open credit"),
        (decode_pb2.PrefetchRequest(stored=decode_pb2.PrefetchStored(num_blocks=1)), "no open"),
        (
            decode_pb2.PrefetchRequest(begin=decode_pb2.PrefetchBegin(request_id="r-1")),
            "credit_id is ''",
        ),
    ],
)
async def test_a_prefetch_without_a_credit_is_refused(
    message: decode_pb2.PrefetchRequest | None, says: str
) -> None:
    async with face() as (rig, stub):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Prefetch(iter([message] if message else []), timeout=20)
        error = status.from_rpc_error(caught.value)
        assert (error.code, error.reason) == (CODE.ABORTED, Reason.LEASE_LOST)
        assert says in error.message
        await rig.assert_at_rest()


async def test_a_deadline_ends_a_prefetch_and_frees_its_bytes() -> None:
    async with face() as (rig, stub):
        await handed_over(rig)
        ask = decode_pb2.ReserveSlotRequest(
            request_id="r-1", num_tokens=45, fingerprint=rig.layout.fingerprint
        )
        credit_id = (await stub.ReserveSlot(ask, timeout=20)).credit_id
        begin = decode_pb2.PrefetchBegin(
            request_id="r-1", attempt=1, token_ids=PROMPT, credit_id=credit_id
        )
        stored = decode_pb2.PrefetchStored(num_blocks=9)
        messages = [
            decode_pb2.PrefetchRequest(begin=begin),
            decode_pb2.PrefetchRequest(stored=stored),
        ]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Prefetch(iter(messages), timeout=0.2)
        assert caught.value.code() is CODE.DEADLINE_EXCEEDED
        await until(lambda: len(rig.prefetches) == 0)
        await stub.ReleaseSlot(decode_pb2.ReleaseSlotRequest(credit_id=credit_id), timeout=20)
        for record in rig.store.audit():
            rig.store.abort(record.handoff_id)
        await rig.assert_at_rest()


async def test_credits_over_the_wire() -> None:
    async with face(decode={"max_num_seqs": 1}) as (rig, stub):
        ask = decode_pb2.ReserveSlotRequest(
            request_id="r-1", num_tokens=45, fingerprint=rig.layout.fingerprint
        )
        credit = await stub.ReserveSlot(ask, timeout=20)
        assert wire.seconds(credit.ttl) == CREDIT_TTL_S
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ReserveSlot(ask, timeout=20)
        error = status.from_rpc_error(caught.value)
        assert (error.code, error.reason) == (CODE.RESOURCE_EXHAUSTED, Reason.POOL_FULL)
        assert error.retry_after_s is not None
        give = decode_pb2.ReleaseSlotRequest(credit_id=credit.credit_id)
        assert (await stub.ReleaseSlot(give, timeout=20)).found
        assert not (await stub.ReleaseSlot(give, timeout=20)).found
        ask.fingerprint = bytes(8)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ReserveSlot(ask, timeout=20)
        error = status.from_rpc_error(caught.value)
        assert (error.code, error.reason) == (CODE.FAILED_PRECONDITION, Reason.KV_LAYOUT_DIFFERS)
        await rig.assert_at_rest()


def _swap(rig: Rig) -> None:
    blocks = _keys(rig, b":b:", b":1:0:0")
    first, second = blocks[0], blocks[1]
    values = rig.backend._values
    values[first], values[second] = values[second], values[first]


def _keys(rig: Rig, kind: bytes, end: bytes) -> list[bytes]:
    return sorted(key for key in rig.backend._values if kind in key and key.endswith(end))


def _drop(kind: bytes, end: bytes) -> Callable[[Rig], None]:
    def damage(rig: Rig) -> None:
        del rig.backend._values[_keys(rig, kind, end)[0]]

    return damage


def _flip(kind: bytes, end: bytes, position: int) -> Callable[[Rig], None]:
    def damage(rig: Rig) -> None:
        rig.backend._values[_keys(rig, kind, end)[0]].data[position] ^= 1

    return damage


def _truncate(rig: Rig) -> None:
    del rig.backend._values[_keys(rig, b":b:", b":1:0:0")[0]].data[-1:]


BLOCK_KEY, TAIL_KV_KEY, TAIL_STATE_KEY = (
    (b":b:", b":1:0:0"),
    (b":t:", b":3:0:0"),
    (b":t:", b":4:0:0"),
)
DAMAGES = {
    "block payload": (_flip(*BLOCK_KEY, -1), CODE.DATA_LOSS, Reason.CHECKSUM_DIFFERS),
    "block header": (_flip(*BLOCK_KEY, 9), CODE.DATA_LOSS, Reason.CHECKSUM_DIFFERS),
    "block cut": (_truncate, CODE.DATA_LOSS, Reason.CHECKSUM_DIFFERS),
    "blocks swapped": (_swap, CODE.DATA_LOSS, Reason.CHECKSUM_DIFFERS),
    "block gone": (_drop(*BLOCK_KEY), CODE.NOT_FOUND, Reason.BLOCK_EVICTED),
    "tail payload": (_flip(*TAIL_KV_KEY, -1), CODE.DATA_LOSS, Reason.CHECKSUM_DIFFERS),
    "tail state": (_flip(*TAIL_STATE_KEY, -1), CODE.DATA_LOSS, Reason.CHECKSUM_DIFFERS),
    "tail gone": (_drop(*TAIL_STATE_KEY), CODE.NOT_FOUND, Reason.BLOCK_EVICTED),
}


@pytest.mark.parametrize(("damage", "code", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
async def test_damage_in_the_store_is_refused_by_kind_counted_and_recomputed(
    damage: Callable[[Rig], None], code: grpc.StatusCode, reason: Reason
) -> None:
    async with face() as (rig, stub):
        request = await handed_over(rig)
        damage(rig)
        error = await refused(stub, request)
        assert (error.code, error.reason) == (code, reason)
        kind = "evicted" if error.metadata["cause"].startswith("missing") else "corrupt"
        assert rig.metrics.value("disagg_handoff_total", outcome=kind) == 1
        damage_told = {
            "evicted": "disagg_kv_early_evictions_total",
            "corrupt": "disagg_kv_checksum_failures_total",
        }
        assert rig.metrics.value(damage_told[kind]) == 1
        await rig.assert_at_rest()
        # What the balancer does next: the same request, attempt 2, nothing read.
        again = prompt(PROMPT, attempt=2, bypass_prefix=reason is Reason.CHECKSUM_DIFFERS)
        first, ticket = outcome(await run_prefill(rig, again))
        assert ticket is not None
        request.attempt = 2
        request.ticket.CopyFrom(wire.ticket_message(ticket))
        found = [first]
        async for event in stub.Decode(request, timeout=20):
            found += event.tokens.token_ids
        assert found == expected_tokens(PROMPT, again.sampling)
        await rig.assert_at_rest()


async def test_refusals_by_lease_attempt_and_layout() -> None:
    async with face() as (rig, stub):
        request = await handed_over(rig)
        wrong = decode_pb2.DecodeRequest.FromString(request.SerializeToString())
        wrong.ticket.fingerprint = bytes(8)
        error = await refused(stub, wrong)
        assert (error.code, error.reason) == (CODE.FAILED_PRECONDITION, Reason.KV_LAYOUT_DIFFERS)
        wrong = decode_pb2.DecodeRequest.FromString(request.SerializeToString())
        wrong.attempt = 2
        error = await refused(stub, wrong)
        assert (error.code, error.reason) == (CODE.ABORTED, Reason.STALE_ATTEMPT)
        wrong = decode_pb2.DecodeRequest.FromString(request.SerializeToString())
        wrong.ClearField("ticket")
        error = await refused(stub, wrong)
        assert (error.code, error.reason) == (CODE.INVALID_ARGUMENT, Reason.BAD_REQUEST)
        assert "ticket" in error.message
        newer = await handed_over(rig, attempt=2)
        error = await refused(stub, request)
        assert (error.code, error.reason) == (CODE.ABORTED, Reason.STALE_ATTEMPT)
        (key,) = [key for key in rig.backend._leases if newer.ticket.handoff_id.encode() in key]
        del rig.backend._leases[key]
        error = await refused(stub, newer)
        assert (error.code, error.reason) == (CODE.ABORTED, Reason.LEASE_LOST)
        for ticket in (request.ticket, newer.ticket):
            rig.store.abort(ticket.handoff_id)
        await rig.assert_at_rest()


async def test_a_store_that_is_down_sends_callers_elsewhere() -> None:
    async with face() as (rig, stub):
        request = await handed_over(rig)
        rig.backend.failures["get"] = StoreDown("unix:///x", "refused")
        error = await refused(stub, request)
        assert (error.code, error.reason) == (CODE.UNAVAILABLE, Reason.STORE_DOWN)
        rig.backend.failures.clear()
        rig.store.abort(request.ticket.handoff_id)
        await rig.assert_at_rest()


async def test_a_caller_who_hangs_up_or_runs_out_of_time_leaves_nothing() -> None:
    async with face() as (rig, stub):
        call = stub.Decode(await handed_over(rig, max_tokens=150), timeout=20)
        async for event in call:
            if event.HasField("tokens"):
                break
        call.cancel()
        await rig.assert_at_rest()
        late = await handed_over(rig, request_id="r-2")
        rig.backend.stages["get"].close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Decode(late, timeout=0.05):
                pass
        assert caught.value.code() is CODE.DEADLINE_EXCEEDED
        rig.backend.stages["get"].open()
        await until(lambda: rig.decode.statistics().running == 0)
        rig.store.abort(late.ticket.handoff_id)
        await rig.assert_at_rest()


async def test_a_dead_engine_sends_callers_elsewhere_also_in_the_middle() -> None:
    async with face() as (rig, stub):
        request = await handed_over(rig)
        rig.decode_runner.fail_run = RuntimeError("device lost")
        error = await refused(stub, request)
        assert (error.code, error.reason) == (CODE.UNAVAILABLE, Reason.PEER_GONE)
        assert rig.store.audit() == []
        assert rig.decode.statistics().running == 0


async def test_a_request_that_fails_in_the_engine_fails_alone() -> None:
    async with face() as (rig, stub):
        good, bad = await handed_over(rig), await handed_over(rig, request_id="r-2")
        rig.decode_runner.bad_rows.add("r-2#1")
        with capture_logs() as logs:
            error = await refused(stub, bad)
        assert "call.failed" in [entry["event"] for entry in logs]
        assert (error.code, error.reason) == (CODE.INTERNAL, Reason.INVARIANT_BROKEN)
        found: list[int] = []
        async for event in stub.Decode(good, timeout=20):
            found += event.tokens.token_ids
        assert found == expected_tokens(PROMPT, prompt(PROMPT).sampling)[1:]
        await rig.assert_at_rest()
