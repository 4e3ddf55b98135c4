"""Calls to members: what is sent, what comes back, how failures look."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc.aio
import pytest

from balancer.journey.request import Sampling
from balancer.membership import Member, Role
from balancer.remote.legs import Committed, FirstToken, LegCall, Ticket, Tokens
from balancer.remote.peers import GrpcPeers
from disagg.v1 import common_pb2
from runtime.errors import Corrupt, Overloaded, Reason, TooLate, Unavailable
from runtime.metrics import Metrics
from tests.fakes import members as fakes
from tests.fakes.memberships import member

CALL = LegCall(
    request_id="r",
    attempt=2,
    token_ids=(5, 6, 7),
    num_generated=1,
    sampling=Sampling(seed=3, max_tokens=4, logprobs=2),
    cache_salt="tenant",
)


def target(fake: fakes.Member, role: Role) -> Member:
    return member(fake.member_id, role, address=fake.address, fingerprint=fakes.FINGERPRINT)


def calls(metrics: Metrics, method: str, code: str) -> float:
    """How many calls of a method ended like this."""
    labels = {"rpc_method": method, "rpc_response_status_code": code}
    return metrics.value("rpc_client_call_duration_seconds", **labels)


async def test_both_legs_carry_everything_and_come_back_as_our_types() -> None:
    metrics = Metrics()
    p0, d0, peers = fakes.prefill_member(), fakes.decode_member(), GrpcPeers(metrics=metrics)
    await p0.start()
    await d0.start()
    try:
        decode = target(d0, Role.DECODE)
        credit = await peers.reserve(decode, "r", 9, timeout_s=5)
        assert credit in d0.credits
        prefill_stream = peers.prefill(
            target(p0, Role.PREFILL), CALL, bypass_prefix=True, report_stored=True, timeout_s=5
        )
        events = [event async for event in prefill_stream]
        [first] = [event for event in events if isinstance(event, FirstToken)]
        assert first.logprobs[0].logprob == -2.0
        [committed] = [event for event in events if isinstance(event, Committed)]
        assert committed.ticket is not None
        assert committed.ticket.handoff_id == "h-r-2"
        assert committed.ticket.fingerprint == fakes.FINGERPRINT
        decode_stream = peers.decode(decode, CALL, committed.ticket, credit, timeout_s=5)
        tokens = [event async for event in decode_stream if isinstance(event, Tokens)]
        assert [event.seq for event in tokens] == [3, 4]
        assert {event.attempt for event in tokens} == {2}
        sent = p0.calls[0]
        assert sent.bypass_prefix  # type: ignore[attr-defined]
        for call in (sent, d0.calls[0]):
            assert list(call.token_ids) == [5, 6, 7]  # type: ignore[attr-defined]
            assert call.cache_salt == "tenant"  # type: ignore[attr-defined]
        await peers.release(decode, "unknown", timeout_s=5)
        for method in (
            *("disagg.v1.DecodeService/ReserveSlot", "disagg.v1.DecodeService/ReleaseSlot"),
            *("disagg.v1.PrefillService/Prefill", "disagg.v1.DecodeService/Decode"),
        ):
            assert calls(metrics, method, "OK") == 1, method
    finally:
        await peers.close()
        await p0.stop()
        await d0.stop()


async def test_failures_keep_their_reason() -> None:
    metrics = Metrics()
    d0, peers = fakes.decode_member(), GrpcPeers(metrics=metrics)
    await d0.start()
    ticket = Ticket(
        handoff_id="h", fingerprint=b"", wire=common_pb2.KvTicket(num_tokens=3).SerializeToString()
    )
    try:
        decode = target(d0, Role.DECODE)
        d0.scripts.append(fakes.Script(error=Corrupt("bad digest")))
        with pytest.raises(Corrupt, match="bad digest") as corrupt:
            [event async for event in peers.decode(decode, CALL, ticket, "", timeout_s=5)]
        assert corrupt.value.reason is Reason.CHECKSUM_DIFFERS
        d0.capacity = 0
        with pytest.raises(Overloaded):
            await peers.reserve(decode, "r", 9, timeout_s=5)
        d0.scripts.append(fakes.Script(hang=True))
        with pytest.raises(TooLate):
            [event async for event in peers.decode(decode, CALL, ticket, "", timeout_s=0.05)]
        decoding = "disagg.v1.DecodeService/Decode"
        for code in ("DATA_LOSS", "DEADLINE_EXCEEDED"):
            assert calls(metrics, decoding, code) == 1, code
        async with aclosing(peers.decode(decode, CALL, ticket, "", timeout_s=5)) as left:
            await anext(left)
        assert calls(metrics, decoding, "CANCELLED") == 1
    finally:
        await peers.close()
        await d0.stop()


async def test_a_member_that_is_not_there_is_named() -> None:
    peers = GrpcPeers()
    try:
        nobody = member("d9", address="127.0.0.1:1")
        with pytest.raises(Unavailable, match=r"decode member d9 at 127\.0\.0\.1:1") as caught:
            await peers.reserve(nobody, "r", 9, timeout_s=5)
        assert caught.value.reason is Reason.PEER_GONE
    finally:
        await peers.close()


async def test_leaving_an_iteration_cancels_the_call() -> None:
    p0, peers = fakes.prefill_member(), GrpcPeers()
    await p0.start()
    try:
        p0.scripts.append(fakes.Script(hang=True))
        stream = peers.prefill(
            target(p0, Role.PREFILL), CALL, bypass_prefix=False, report_stored=False, timeout_s=5
        )
        async with aclosing(stream) as events:
            await anext(events)
            await p0.reached.wait()
        for _ in range(500):
            if p0.cancelled:
                break
            await asyncio.sleep(0.01)
        assert p0.cancelled == 1
    finally:
        await peers.close()
        await p0.stop()


async def test_channels_of_forgotten_members_are_closed() -> None:
    d0, peers = fakes.decode_member(), GrpcPeers()
    await d0.start()
    try:
        decode = target(d0, Role.DECODE)
        await peers.reserve(decode, "r", 9, timeout_s=5)
        channel = peers._channel(d0.address)
        await peers.keep_only({"elsewhere:1"})
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        await peers.reserve(decode, "r2", 9, timeout_s=5)  # a new one is made on demand
    finally:
        await peers.close()
        await d0.stop()
