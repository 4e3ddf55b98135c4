"""The gRPC face of a decode rank, thin.

It validates nothing itself: it translates a call into a `SequenceRequest`, events into messages,
and leaves errors to the exception mapper, which `error_map` tells what the libraries' exceptions
mean.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import grpc.aio

from decode_service.decode import DecodeEvent, DecodePath, Resumed, SequenceRequest
from decode_service.prefetch import PrefetchRequest
from disagg import wire
from disagg.v1 import decode_pb2, decode_pb2_grpc
from engine.handoff import LayoutError
from engine.request import EngineError, InvalidRequest, SamplingParams
from kvstore.rim import register_errors
from kvstore.ticket import Ticket
from runtime.access import is_guest
from runtime.budget import BudgetFull
from runtime.channel import hop_timeout_s
from runtime.errors import ErrorMap, Mismatch, Overloaded, Reason, TooLate
from runtime.telemetry import current

SERVICE = decode_pb2.DESCRIPTOR.services_by_name["DecodeService"].full_name
# Credits are part of taking work: a draining rank gives none.
WORK = frozenset({f"/{SERVICE}/Decode", f"/{SERVICE}/ReserveSlot"})

DecodeContext = grpc.aio.ServicerContext[decode_pb2.DecodeRequest, decode_pb2.DecodeResponse]
PrefetchContext = grpc.aio.ServicerContext[decode_pb2.PrefetchRequest, decode_pb2.PrefetchResponse]
ReserveContext = grpc.aio.ServicerContext[
    decode_pb2.ReserveSlotRequest, decode_pb2.ReserveSlotResponse
]
ReleaseContext = grpc.aio.ServicerContext[
    decode_pb2.ReleaseSlotRequest, decode_pb2.ReleaseSlotResponse
]


class DecodeServicer(decode_pb2_grpc.DecodeServiceServicer):
    """Wire messages to the path of a sequence and back.

    Args:
        path: The path.
        credit_ttl_s: Life of a credit, as callers are told.
        default_timeout_s: Deadline of a call that brings none.
    """

    def __init__(self, path: DecodePath, *, credit_ttl_s: float, default_timeout_s: float) -> None:
        self._path = path
        self._credit_ttl_s = credit_ttl_s
        self._default_timeout_s = default_timeout_s

    async def Decode(  # type: ignore[override]  # writes its responses, see runtime.interceptors
        self, request: decode_pb2.DecodeRequest, context: DecodeContext
    ) -> None:
        """See decode.proto."""

        async def emit(event: DecodeEvent) -> None:
            await context.write(_response(event, request.attempt))

        sequence = SequenceRequest(
            request_id=request.request_id,
            attempt=request.attempt,
            ticket=Ticket(**wire.ticket_fields(request.ticket)),
            token_ids=tuple(request.token_ids),
            num_generated=request.num_generated,
            sampling=SamplingParams(**wire.sampling_fields(request.sampling)),
            cache_salt=request.cache_salt,
            credit_id=request.credit_id,
            needs_credit=is_guest(),
        )
        current().set(
            {"disagg.attempt": request.attempt, "disagg.handoff_id": request.ticket.handoff_id}
        )
        timeout_s = hop_timeout_s(context.time_remaining(), self._default_timeout_s)
        async with asyncio.timeout(timeout_s):
            await self._path.run(sequence, emit)

    async def Prefetch(
        self, request: AsyncIterator[decode_pb2.PrefetchRequest], context: PrefetchContext
    ) -> decode_pb2.PrefetchResponse:
        """See decode.proto."""
        timeout_s = hop_timeout_s(context.time_remaining(), self._default_timeout_s)
        async with asyncio.timeout(timeout_s):
            begin = (await anext(request, decode_pb2.PrefetchRequest())).begin
            handed = await self._path.prefetch(
                PrefetchRequest(
                    request_id=begin.request_id,
                    attempt=begin.attempt,
                    token_ids=tuple(begin.token_ids),
                    cache_salt=begin.cache_salt,
                    credit_id=begin.credit_id,
                ),
                _counts(request),
            )
            current().set(
                {"disagg.kv.blocks": handed.num_blocks, "disagg.kv.bytes": handed.num_bytes}
            )
        return decode_pb2.PrefetchResponse(num_blocks=handed.num_blocks, bytes=handed.num_bytes)

    async def ReserveSlot(
        self, request: decode_pb2.ReserveSlotRequest, _context: ReserveContext
    ) -> decode_pb2.ReserveSlotResponse:
        """See decode.proto."""
        credit = await self._path.reserve(
            request.request_id, request.num_tokens, request.fingerprint
        )
        return decode_pb2.ReserveSlotResponse(
            credit_id=credit.credit_id, ttl=wire.duration(self._credit_ttl_s)
        )

    async def ReleaseSlot(
        self, request: decode_pb2.ReleaseSlotRequest, _context: ReleaseContext
    ) -> decode_pb2.ReleaseSlotResponse:
        """See decode.proto."""
        return decode_pb2.ReleaseSlotResponse(found=await self._path.release(request.credit_id))


async def _counts(messages: AsyncIterator[decode_pb2.PrefetchRequest]) -> AsyncGenerator[int]:
    async for message in messages:
        yield message.stored.num_blocks


def _response(event: DecodeEvent, attempt: int) -> decode_pb2.DecodeResponse:
    if isinstance(event, Resumed):
        return decode_pb2.DecodeResponse(
            resumed=decode_pb2.DecodeResumed(
                fetched_bytes=event.num_bytes,
                prefetched_bytes=event.prefetched_bytes,
                fetch_us=max(0, round(event.fetch_s * 1e6)),
            )
        )
    last = event.tokens[-1]
    return decode_pb2.DecodeResponse(
        tokens=decode_pb2.DecodeTokens(
            attempt=attempt,
            seq=last.number,
            token_ids=[token.token_id for token in event.tokens],
            logprobs=[
                wire.position_logprobs(token.logprob, token.top_logprobs)
                for token in event.tokens
                if token.logprob is not None
            ],
            finish_reason=wire.finish_reason(last.finish_reason),
        )
    )


def error_map() -> ErrorMap:
    """What the exceptions of the libraries mean to a caller."""
    errors = ErrorMap()
    register_errors(errors)
    errors.register_causes(InvalidRequest, default=Reason.BAD_REQUEST)
    # What is neither the caller's fault nor a full engine is an engine that stops or died.
    errors.register_causes(EngineError, default=Reason.PEER_GONE)
    errors.register(LayoutError, lambda error: Mismatch(str(error)))
    errors.register(
        BudgetFull,
        lambda error: Overloaded(str(error), reason=Reason.QUEUE_FULL, retry_after_s=1.0),
    )
    errors.register(TimeoutError, lambda _: TooLate("the deadline passed before the last token"))
    return errors
