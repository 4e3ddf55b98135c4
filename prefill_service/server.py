"""The gRPC face of a prefill rank, thin.

It validates nothing itself: it translates a call into a `PromptRequest`, events into messages, and
leaves errors to the exception mapper, which `error_map` tells what the libraries' exceptions mean.
"""

import asyncio

import grpc.aio

from disagg import wire
from disagg.v1 import prefill_pb2, prefill_pb2_grpc
from engine.request import ChunkDone, EngineError, InvalidRequest, SamplingParams
from kvstore.rim import register_errors
from prefill_service.prefill import (
    Admitted,
    Committed,
    FirstToken,
    PrefillEvent,
    PrefillPath,
    PrefixHit,
    PromptRequest,
)
from prefill_service.stored import BlocksStored
from runtime.budget import BudgetFull
from runtime.channel import hop_timeout_s
from runtime.errors import ErrorMap, Overloaded, Reason, TooLate
from runtime.telemetry import current

SERVICE = prefill_pb2.DESCRIPTOR.services_by_name["PrefillService"].full_name
WORK = frozenset({f"/{SERVICE}/Prefill"})

Context = grpc.aio.ServicerContext[prefill_pb2.PrefillRequest, prefill_pb2.PrefillResponse]


class PrefillServicer(prefill_pb2_grpc.PrefillServiceServicer):
    """Wire messages to the path of a prompt and back.

    Args:
        path: The path.
        default_timeout_s: Deadline of a call that brings none.
    """

    def __init__(self, path: PrefillPath, *, default_timeout_s: float) -> None:
        self._path = path
        self._default_timeout_s = default_timeout_s

    async def Prefill(  # type: ignore[override]  # writes its responses, see runtime.interceptors
        self, request: prefill_pb2.PrefillRequest, context: Context
    ) -> None:
        """See prefill.proto."""

        async def emit(event: PrefillEvent) -> None:
            await context.write(_response(event))

        prompt = PromptRequest(
            request_id=request.request_id,
            attempt=request.attempt,
            token_ids=tuple(request.token_ids),
            num_generated=request.num_generated,
            sampling=SamplingParams(**wire.sampling_fields(request.sampling)),
            cache_salt=request.cache_salt,
            bypass_prefix=request.bypass_prefix,
            report_stored=request.report_stored,
        )
        current().set(
            {"disagg.attempt": request.attempt, "disagg.prompt_tokens": len(request.token_ids)}
        )
        timeout_s = hop_timeout_s(context.time_remaining(), self._default_timeout_s)
        async with asyncio.timeout(timeout_s):
            await self._path.run(prompt, emit)


def _response(event: PrefillEvent) -> prefill_pb2.PrefillResponse:
    match event:
        case Admitted():
            return prefill_pb2.PrefillResponse(
                admitted=prefill_pb2.PrefillAdmitted(queue_length=event.queue_length)
            )
        case PrefixHit():
            return prefill_pb2.PrefillResponse(
                prefix_hit=prefill_pb2.PrefillPrefixHit(
                    cached_tokens=event.cached_tokens,
                    replayed_tokens=event.replayed_tokens,
                    bytes=event.num_bytes,
                    load_us=_micros(event.load_s),
                )
            )
        case ChunkDone():
            return prefill_pb2.PrefillResponse(
                chunk_done=prefill_pb2.PrefillChunkDone(computed_tokens=event.computed_tokens)
            )
        case FirstToken():
            token = event.token
            return prefill_pb2.PrefillResponse(
                first_token=prefill_pb2.PrefillFirstToken(
                    token_id=token.token_id,
                    logprobs=None
                    if token.logprob is None
                    else wire.position_logprobs(token.logprob, token.top_logprobs),
                    finish_reason=wire.finish_reason(token.finish_reason),
                    queue_us=_micros(event.queue_s),
                    compute_us=_micros(event.compute_s),
                )
            )
        case Committed():
            return prefill_pb2.PrefillResponse(
                committed=prefill_pb2.PrefillCommitted(
                    ticket=None if event.ticket is None else wire.ticket_message(event.ticket),
                    published_bytes=event.published_bytes,
                    commit_us=_micros(event.commit_s),
                )
            )
        case BlocksStored():
            return prefill_pb2.PrefillResponse(
                blocks_stored=prefill_pb2.PrefillBlocksStored(num_blocks=event.num_blocks)
            )


def _micros(value_s: float) -> int:
    return max(0, round(value_s * 1e6))


def error_map() -> ErrorMap:
    """What the exceptions of the libraries mean to a caller."""
    errors = ErrorMap()
    register_errors(errors)
    errors.register_causes(InvalidRequest, default=Reason.BAD_REQUEST)
    # What is neither the caller's fault nor a full engine is an engine that stops or died.
    errors.register_causes(EngineError, default=Reason.PEER_GONE)
    errors.register(
        BudgetFull,
        lambda error: Overloaded(str(error), reason=Reason.QUEUE_FULL, retry_after_s=1.0),
    )
    errors.register(
        TimeoutError, lambda _: TooLate("the deadline passed before the hand-off was committed")
    )
    return errors
