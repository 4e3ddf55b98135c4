"""Wire messages of the legs, to and from our own types. Pure."""

from __future__ import annotations

from balancer.journey.request import FinishReason, Logprobs, Sampling
from balancer.remote.legs import (
    BlocksStored,
    Committed,
    DecodeEvent,
    FirstToken,
    LegCall,
    PrefillEvent,
    PrefixHit,
    Progress,
    Resumed,
    Ticket,
    Tokens,
)
from disagg.v1 import common_pb2, decode_pb2, prefill_pb2
from runtime.errors import Bug


def prefill_request(
    call: LegCall, *, bypass_prefix: bool, report_stored: bool
) -> prefill_pb2.PrefillRequest:
    """What a prefill member is sent."""
    return prefill_pb2.PrefillRequest(
        request_id=call.request_id,
        attempt=call.attempt,
        token_ids=call.token_ids,
        num_generated=call.num_generated,
        sampling=_sampling_message(call.sampling),
        cache_salt=call.cache_salt,
        bypass_prefix=bypass_prefix,
        report_stored=report_stored,
    )


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


def prefill_event(message: prefill_pb2.PrefillResponse) -> PrefillEvent:
    """An event of prefill; one that is not known here counts as progress.

    Raises:
        Bug: A finish reason that no engine gives.
    """
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


def decode_event(message: decode_pb2.DecodeResponse) -> DecodeEvent:
    """An event of decode; see `prefill_event`."""
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
