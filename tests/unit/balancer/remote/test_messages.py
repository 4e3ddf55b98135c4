"""Wire messages of the legs, field by field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from balancer.journey.request import FinishReason, Logprobs, Sampling
from balancer.remote.legs import (
    BlocksStored,
    Committed,
    FirstToken,
    LegCall,
    PrefixHit,
    Progress,
    Resumed,
    Ticket,
    Tokens,
)
from balancer.remote.messages import decode_event, decode_request, prefill_event, prefill_request
from disagg.v1 import common_pb2, decode_pb2, prefill_pb2
from runtime.errors import Bug

CALL = LegCall(
    request_id="r",
    attempt=2,
    token_ids=(5, 6, 7),
    num_generated=1,
    sampling=Sampling(
        seed=2**64 - 1,
        max_tokens=4,
        temperature=0.5,
        top_k=3,
        top_p=0.75,
        min_p=0.25,
        min_tokens=1,
        stop_token_ids=(9,),
        ignore_eos=True,
        logprobs=0,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=2.0,
        stop=("never sent",),
    ),
    cache_salt="tenant",
)
SAMPLING = common_pb2.SamplingParams(
    seed=2**64 - 1,
    max_tokens=4,
    temperature=0.5,
    top_k=3,
    top_p=0.75,
    min_p=0.25,
    min_tokens=1,
    stop_token_ids=[9],
    ignore_eos=True,
    logprobs=0,
    presence_penalty=1.0,
    frequency_penalty=-1.0,
    repetition_penalty=2.0,
)
WIRE_TICKET = common_pb2.KvTicket(handoff_id="h", fingerprint=b"layout-1", num_tokens=3)
TICKET = Ticket(handoff_id="h", fingerprint=b"layout-1", wire=WIRE_TICKET.SerializeToString())


def test_prefill_is_sent_everything() -> None:
    assert prefill_request(
        CALL, bypass_prefix=True, report_stored=True
    ) == prefill_pb2.PrefillRequest(
        request_id="r",
        attempt=2,
        token_ids=[5, 6, 7],
        num_generated=1,
        sampling=SAMPLING,
        cache_salt="tenant",
        bypass_prefix=True,
        report_stored=True,
    )


def test_decode_is_sent_everything() -> None:
    assert decode_request(CALL, TICKET, "credit") == decode_pb2.DecodeRequest(
        request_id="r",
        attempt=2,
        ticket=WIRE_TICKET,
        token_ids=[5, 6, 7],
        num_generated=1,
        sampling=SAMPLING,
        cache_salt="tenant",
        credit_id="credit",
    )


def test_no_log_probabilities_are_not_zero_of_them() -> None:
    none = replace(CALL, sampling=replace(CALL.sampling, logprobs=None))
    sent = prefill_request(none, bypass_prefix=False, report_stored=False)
    assert not sent.sampling.HasField("logprobs")


def test_events_of_prefill() -> None:
    message = prefill_pb2.PrefillResponse()
    assert prefill_event(message) == Progress()
    message.prefix_hit.cached_tokens, message.prefix_hit.bytes = 64, 1000
    message.prefix_hit.load_us = 7
    assert prefill_event(message) == PrefixHit(cached_tokens=64, num_bytes=1000, load_us=7)
    message.blocks_stored.num_blocks = 3
    assert prefill_event(message) == BlocksStored(num_blocks=3)
    first = message.first_token
    first.token_id, first.queue_us, first.compute_us = 8, 5, 9
    expected = FirstToken(token_id=8, logprobs=(), finish_reason=None, queue_us=5, compute_us=9)
    assert prefill_event(message) == expected
    first.logprobs.logprob = -2.0
    first.logprobs.top.add(token_id=4, logprob=-1.0)
    first.finish_reason = common_pb2.FINISH_REASON_STOP
    assert prefill_event(message) == replace(
        expected,
        logprobs=(Logprobs(logprob=-2.0, top=((4, -1.0),)),),
        finish_reason=FinishReason.STOP,
    )
    message.committed.published_bytes, message.committed.commit_us = 100, 6
    done = Committed(ticket=None, published_bytes=100, commit_us=6)
    assert prefill_event(message) == done
    message.committed.ticket.CopyFrom(WIRE_TICKET)
    assert prefill_event(message) == replace(done, ticket=TICKET)


def test_events_of_decode() -> None:
    message = decode_pb2.DecodeResponse()
    assert decode_event(message) == Progress()
    resumed = message.resumed
    resumed.fetched_bytes, resumed.prefetched_bytes, resumed.fetch_us = 100, 40, 11
    assert decode_event(message) == Resumed(fetched_bytes=100, prefetched_bytes=40, fetch_us=11)
    tokens = message.tokens
    tokens.attempt, tokens.seq = 2, 4
    tokens.token_ids.extend([1, 2])
    tokens.logprobs.add(logprob=-0.5)
    tokens.finish_reason = common_pb2.FINISH_REASON_LENGTH
    assert decode_event(message) == Tokens(
        attempt=2,
        seq=4,
        token_ids=(1, 2),
        logprobs=(Logprobs(logprob=-0.5),),
        finish_reason=FinishReason.LENGTH,
    )


def test_a_finish_reason_that_no_engine_gives_is_a_bug() -> None:
    message = decode_pb2.DecodeResponse()
    message.tokens.finish_reason = common_pb2.FINISH_REASON_TOOL_CALLS
    with pytest.raises(Bug, match="which no engine gives"):
        decode_event(message)
