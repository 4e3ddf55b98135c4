"""Calls to prefill and decode members: the wire on one side, our own types on the other.

One channel per address, kept while the member lives. No call is repeated here: every failure leaves
as an error of `runtime.errors`, and the pipeline alone decides what follows. Leaving an
iteration early cancels the call, and with it the work on the other side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio

from balancer.journey.request import FinishReason, Logprobs, Sampling
from balancer.membership import Member
from balancer.remote.prefetch import GrpcPrefetch, Prefetch
from disagg.v1 import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc
from runtime.clock import Clock, SystemClock
from runtime.errors import Bug, CallerLeft, DisaggError, Reason, Unavailable
from runtime.metrics import Metrics
from runtime.security import NO_SECURITY, Security
from runtime.status import from_rpc_error
from runtime.telemetry import Span, current
from runtime.tracing.table import Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A hand-off as the balancer sees it: a name, and the bytes decode needs."""

    handoff_id: str
    fingerprint: bytes
    wire: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """A stored prefix was loaded."""

    cached_tokens: int
    num_bytes: int
    load_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The first token of the attempt exists; `finish_reason` is set if it ends the generation."""

    token_id: int
    logprobs: tuple[Logprobs, ...]
    finish_reason: FinishReason | None
    queue_us: int
    compute_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The hand-off is readable; no ticket if the first token ended the generation."""

    ticket: Ticket | None
    published_bytes: int
    commit_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Something moved on; only its being there counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """The first `num_blocks` blocks of the hand-off can be read already."""

    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Decode has verified the state and runs; some bytes it had read ahead."""

    fetched_bytes: int
    prefetched_bytes: int
    fetch_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """New tokens of decode; the last is numbered `seq`."""

    attempt: int
    seq: int
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]
    finish_reason: FinishReason | None


PrefillEvent = Progress | PrefixHit | BlocksStored | FirstToken | Committed
DecodeEvent = Progress | Resumed | Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LegCall:
    """What both legs of an attempt are told.

    Attributes:
        token_ids: Prompt and what was generated behind it: for prefill everything that exists, for
            decode what the ticket covers.
        num_generated: How many of `token_ids` were generated.
    """

    request_id: str
    attempt: int
    token_ids: tuple[int, ...]
    num_generated: int
    sampling: Sampling
    cache_salt: str


class Peers(Protocol):
    """The members' faces. Called by the pipeline on the event loop; raises DisaggError."""

    async def reserve(
        self, member: Member, request_id: str, num_tokens: int, *, timeout_s: float
    ) -> str:
        """Takes a slot and KV room on a decode member; returns the credit."""
        ...

    async def release(self, member: Member, credit_id: str, *, timeout_s: float) -> None:
        """Gives a credit back; idempotent, failures do not matter (credits expire)."""
        ...

    def prefill(
        self,
        member: Member,
        call: LegCall,
        *,
        bypass_prefix: bool,
        report_stored: bool,
        timeout_s: float,
    ) -> AsyncGenerator[PrefillEvent]:
        """Runs a prefill; closing the iterator cancels it."""
        ...

    def prefetch(
        self, member: Member, call: LegCall, credit_id: str, *, timeout_s: float
    ) -> Prefetch:
        """Lets a decode member read the hand-off of a prefill ahead; raises nothing."""
        ...

    def decode(
        self, member: Member, call: LegCall, ticket: Ticket, credit_id: str, *, timeout_s: float
    ) -> AsyncGenerator[DecodeEvent]:
        """Runs a decode; closing the iterator cancels it."""
        ...


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
        request = prefill_pb2.PrefillRequest(
            request_id=call.request_id,
            attempt=call.attempt,
            token_ids=call.token_ids,
            num_generated=call.num_generated,
            sampling=_sampling_message(call.sampling),
            cache_salt=call.cache_salt,
            bypass_prefix=bypass_prefix,
            report_stored=report_stored,
        )
        stub = prefill_pb2_grpc.PrefillServiceStub(self._channel(member.address))
        async with self._leg(member, f"{_PREFILL}/Prefill", call) as running:
            stream = stub.Prefill(request, timeout=timeout_s, metadata=running.span.headers())
            try:
                async for message in stream:
                    event = _prefill_event(message)
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
                    event = _decode_event(message)
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


def decode_request(call: LegCall, ticket: Ticket, credit_id: str) -> decode_pb2.DecodeRequest:
    """What a decode member is sent, by this process or by a caller that goes there itself."""
    return decode_pb2.DecodeRequest(
        request_id=call.request_id,
        attempt=call.attempt,
        ticket=common_pb2.KvTicket.FromString(ticket.wire),
        token_ids=call.token_ids,
        num_generated=call.num_generated,
        sampling=_sampling_message(call.sampling),
        cache_salt=call.cache_salt,
        credit_id=credit_id,
    )


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


def _sampling_message(sampling: Sampling) -> common_pb2.SamplingParams:
    message = common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
    )
    if sampling.logprobs is not None:
        message.logprobs = sampling.logprobs
    return message


_FINISH_REASONS = {
    common_pb2.FINISH_REASON_UNSPECIFIED: None,
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    common_pb2.FINISH_REASON_ABORT: FinishReason.ABORT,
}


def _finish_reason(value: common_pb2.FinishReason) -> FinishReason | None:
    if value not in _FINISH_REASONS:
        name = common_pb2.FinishReason.Name(value)
        raise Bug(f"a member ended a generation with {name}, which no engine gives")
    return _FINISH_REASONS[value]


def _logprobs(message: common_pb2.PositionLogprobs) -> Logprobs:
    return Logprobs(
        logprob=message.logprob, top=tuple((top.token_id, top.logprob) for top in message.top)
    )


def _prefill_event(message: prefill_pb2.PrefillResponse) -> PrefillEvent:
    match message.WhichOneof("event"):
        case "prefix_hit":
            hit = message.prefix_hit
            return PrefixHit(
                cached_tokens=hit.cached_tokens, num_bytes=hit.bytes, load_us=hit.load_us
            )
        case "blocks_stored":
            return BlocksStored(num_blocks=message.blocks_stored.num_blocks)
        case "first_token":
            first = message.first_token
            return FirstToken(
                token_id=first.token_id,
                logprobs=(_logprobs(first.logprobs),) if first.HasField("logprobs") else (),
                finish_reason=_finish_reason(first.finish_reason),
                queue_us=first.queue_us,
                compute_us=first.compute_us,
            )
        case "committed":
            committed = message.committed
            ticket = None
            if committed.HasField("ticket"):
                ticket = Ticket(
                    handoff_id=committed.ticket.handoff_id,
                    fingerprint=committed.ticket.fingerprint,
                    wire=committed.ticket.SerializeToString(),
                )
            return Committed(
                ticket=ticket,
                published_bytes=committed.published_bytes,
                commit_us=committed.commit_us,
            )
        case _:
            return Progress()


def _decode_event(message: decode_pb2.DecodeResponse) -> DecodeEvent:
    match message.WhichOneof("event"):
        case "resumed":
            resumed = message.resumed
            return Resumed(
                fetched_bytes=resumed.fetched_bytes,
                prefetched_bytes=resumed.prefetched_bytes,
                fetch_us=resumed.fetch_us,
            )
        case "tokens":
            tokens = message.tokens
            return Tokens(
                attempt=tokens.attempt,
                seq=tokens.seq,
                token_ids=tuple(tokens.token_ids),
                logprobs=tuple(map(_logprobs, tokens.logprobs)),
                finish_reason=_finish_reason(tokens.finish_reason),
            )
        case _:
            return Progress()
