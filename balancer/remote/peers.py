"""Calls to prefill and decode members, over gRPC.

One channel per address, kept while the member lives. No call is repeated here: every failure leaves
as an error of `runtime.errors`, and the pipeline alone decides what follows. Leaving an
iteration early cancels the call, and with it the work on the other side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio

from balancer.membership import Member
from balancer.remote.legs import DecodeEvent, LegCall, PrefillEvent, PrefixHit, Ticket, Tokens
from balancer.remote.messages import decode_event, decode_request, prefill_event, prefill_request
from balancer.remote.prefetch import GrpcPrefetch, Prefetch
from disagg.v1 import decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc
from runtime.clock import Clock, SystemClock
from runtime.errors import CallerLeft, DisaggError, Reason, Unavailable
from runtime.metrics import Metrics
from runtime.security import NO_SECURITY, Security
from runtime.status import from_rpc_error
from runtime.telemetry import Span, current
from runtime.tracing.table import Attributes

_DECODE = decode_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name
_PREFILL = prefill_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name


@dataclass(slots=True)
class _Call:
    """A call that runs.

    Attributes:
        span: Its client span; not the current one.
        code: Name of its status; that of a caller who leaves, until it is known better.
    """

    span: Span
    code: str = "CANCELLED"


class GrpcPeers:
    """`Peers` over gRPC; belongs to one event loop.

    Args:
        metrics: Told about every call.
        clock: What they are timed by.
    """

    def __init__(
        self,
        security: Security = NO_SECURITY,
        *,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._clock = clock or SystemClock()
        self._security = security
        self._version = security.version
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._retired: list[grpc.aio.Channel] = []

    async def reserve(
        self, member: Member, request_id: str, num_tokens: int, *, timeout_s: float
    ) -> str:
        """See `Peers.reserve`."""
        request = decode_pb2.ReserveSlotRequest(
            request_id=request_id, num_tokens=num_tokens, fingerprint=member.fingerprint
        )
        attributes: Attributes = {"disagg.request_id": request_id}
        async with self._call(member, f"{_DECODE}/ReserveSlot", attributes) as running:
            answer = await self._decode_stub(member).ReserveSlot(
                request, timeout=timeout_s, metadata=running.span.headers()
            )
        return answer.credit_id

    async def release(self, member: Member, credit_id: str, *, timeout_s: float) -> None:
        """See `Peers.release`."""
        request = decode_pb2.ReleaseSlotRequest(credit_id=credit_id)
        async with self._call(member, f"{_DECODE}/ReleaseSlot") as running:
            await self._decode_stub(member).ReleaseSlot(
                request, timeout=timeout_s, metadata=running.span.headers()
            )

    async def prefill(
        self,
        member: Member,
        call: LegCall,
        *,
        bypass_prefix: bool,
        report_stored: bool,
        timeout_s: float,
    ) -> AsyncGenerator[PrefillEvent]:
        """See `Peers.prefill`."""
        request = prefill_request(call, bypass_prefix=bypass_prefix, report_stored=report_stored)
        stub = prefill_pb2_grpc.PrefillServiceStub(self._channel(member.address))
        async with self._leg(member, f"{_PREFILL}/Prefill", call) as running:
            stream = stub.Prefill(request, timeout=timeout_s, metadata=running.span.headers())
            try:
                async for message in stream:
                    event = prefill_event(message)
                    if isinstance(event, PrefixHit):
                        running.span.set({"disagg.cached_tokens": event.cached_tokens})
                    yield event
            finally:
                stream.cancel()

    def prefetch(
        self, member: Member, call: LegCall, credit_id: str, *, timeout_s: float
    ) -> Prefetch:
        """See `Peers.prefetch`."""
        begin = decode_pb2.PrefetchBegin(
            request_id=call.request_id,
            attempt=call.attempt,
            token_ids=call.token_ids,
            cache_salt=call.cache_salt,
            credit_id=credit_id,
        )
        span = current().call(
            f"{_DECODE}/Prefetch", member.address, {"disagg.attempt": call.attempt}
        )
        return GrpcPrefetch(self._decode_stub(member), begin, timeout_s=timeout_s, span=span)

    async def decode(
        self, member: Member, call: LegCall, ticket: Ticket, credit_id: str, *, timeout_s: float
    ) -> AsyncGenerator[DecodeEvent]:
        """See `Peers.decode`."""
        request = decode_request(call, ticket, credit_id)
        async with self._leg(member, f"{_DECODE}/Decode", call) as running:
            running.span.set({"disagg.handoff_id": ticket.handoff_id})
            stream = self._decode_stub(member).Decode(
                request, timeout=timeout_s, metadata=running.span.headers()
            )
            try:
                async for message in stream:
                    event = decode_event(message)
                    if isinstance(event, Tokens) and event.finish_reason is not None:
                        running.code = "OK"  # whoever listens may leave now
                    yield event
            finally:
                stream.cancel()

    def _leg(
        self, member: Member, method: str, call: LegCall
    ) -> AbstractAsyncContextManager[_Call]:
        """The call of a leg; its span points to that of the attempt before, if there was one."""
        return self._call(
            member,
            method,
            {
                "disagg.request_id": call.request_id,
                "disagg.attempt": call.attempt,
                "disagg.prompt_tokens": len(call.token_ids),
            },
            repeats=call.request_id,
        )

    @asynccontextmanager
    async def _call(
        self,
        member: Member,
        method: str,
        attributes: Attributes | None = None,
        *,
        repeats: str = "",
    ) -> AsyncIterator[_Call]:
        """Times and traces a call and translates what it raises."""
        began = self._clock.now()
        running = _Call(current().call(method, member.address, attributes, repeats=repeats))
        try:
            async with _translated(member):
                yield running
            running.code = "OK"
        except DisaggError as error:
            running.code = error.code.name
            running.span.fail(error)
            raise
        finally:
            running.span.answered(running.code)
            running.span.end()
            self._metrics.observe(
                "rpc_client_call_duration_seconds",
                self._clock.now() - began,
                rpc_method=method,
                rpc_response_status_code=running.code,
            )

    async def keep_only(self, addresses: set[str]) -> None:
        """Closes the channels to members that are no longer known."""
        for address in set(self._channels) - addresses:
            await self._channels.pop(address).close()
        if self._version != self._security.version:
            self._version = self._security.version
            # Streams over the old certificate go on; they have until the one after the next.
            retired, self._retired = self._retired, list(self._channels.values())
            self._channels = {}
            for channel in retired:
                await channel.close()

    async def close(self) -> None:
        """Closes all channels; running calls are cancelled."""
        await self.keep_only(set())
        for channel in self._retired:
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._security.channel(address)
        return self._channels[address]

    def _decode_stub(self, member: Member) -> decode_pb2_grpc.DecodeServiceAsyncStub:
        return decode_pb2_grpc.DecodeServiceStub(self._channel(member.address))


@asynccontextmanager
async def _translated(member: Member) -> AsyncIterator[None]:
    """Turns whatever a call raises into an error of the tree that names the member."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        translated = from_rpc_error(error)
        if isinstance(translated, CallerLeft):
            # We did not cancel, so the peer did: it goes away.
            raise _gone(member, "ended the call") from error
        if isinstance(translated, Unavailable) and translated.reason is Reason.PEER_GONE:
            raise _gone(member, error.details() or "cannot be reached") from error
        raise translated from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC reports a call that broke while it was written to as cancelled.
        raise _gone(member, "the call broke off") from error


def _gone(member: Member, what: str) -> Unavailable:
    return Unavailable(
        f"{member.role.value} member {member.member_id} at {member.address}: {what}",
        reason=Reason.PEER_GONE,
    )
