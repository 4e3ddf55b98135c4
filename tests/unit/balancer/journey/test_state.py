"""What the legs of an attempt are told."""

from __future__ import annotations

from balancer.journey.request import Delta, Request, Sampling
from balancer.journey.retry import Leg, Outage, RequestRetries
from balancer.journey.state import Journey, Limits
from balancer.journey.transcript import Transcript
from tests.fakes.memberships import member


class NoText:
    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


async def emit(delta: Delta) -> None:
    raise AssertionError(delta)


def test_prefill_gets_all_tokens_and_decode_those_with_kv() -> None:
    journey = Journey(
        request=Request(
            request_id="r",
            token_ids=(7, 8, 9),
            sampling=Sampling(seed=1, max_tokens=5),
            arrived_at=0.0,
            deadline=9.0,
            cache_salt="tenant",
        ),
        transcript=Transcript(last_seq=0, text=NoText()),
        emit=emit,
        retries=RequestRetries(prefill=1, decode=1),
        outage=Outage(10.0),
    )
    journey.transcript.begin(1)
    call = journey.prefill_call()
    assert (call.token_ids, call.num_generated, call.attempt) == ((7, 8, 9), 0, 1)
    assert call.cache_salt == "tenant"
    journey.transcript.take(1, 1, [20], (), None)
    call = journey.decode_call()
    assert (call.token_ids, call.num_generated) == ((7, 8, 9), 0)
    journey.transcript.take(1, 3, [21, 22], (), None)
    journey.attempt = 2
    call = journey.prefill_call()
    assert (call.token_ids, call.num_generated, call.attempt) == ((7, 8, 9, 20, 21, 22), 3, 2)
    assert journey.work_id == "r#2"
    journey.enter(Leg.DECODE, member("d3"))
    assert (journey.leg, journey.member_id) == (Leg.DECODE, "d3")


def test_defaults_leave_room_for_one_repeated_prefill_and_two_decodes() -> None:
    limits = Limits()
    assert (limits.prefill_retries, limits.decode_retries) == (1, 2)
    assert limits.recovery_wait_s < limits.first_token_s
