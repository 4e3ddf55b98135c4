"""A leg may be silent for its time and no longer; each event absolves its member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from balancer.journey.request import Delta, Request, Sampling
from balancer.journey.retry import Leg, Outage, RequestRetries
from balancer.journey.silence import Silence
from balancer.journey.state import Journey, Limits
from balancer.journey.transcript import Transcript
from runtime.clock import ManualClock
from runtime.errors import Reason, TooLate, Unavailable


class NoText:
    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


async def emit(delta: Delta) -> None:
    raise AssertionError(delta)


def journey() -> Journey:
    made = Journey(
        request=Request(
            request_id="r",
            token_ids=(7, 8, 9),
            sampling=Sampling(seed=1, max_tokens=5),
            arrived_at=0.0,
            deadline=9.0,
        ),
        transcript=Transcript(last_seq=0, text=NoText()),  # type: ignore[arg-type]
        emit=emit,
        retries=RequestRetries(prefill=1, decode=1),
        outage=Outage(10.0),
        leg=Leg.DECODE,
        member_id="d0",
    )
    made.transcript.begin(1)
    return made


class Stream:
    """Events, then silence if it is asked for."""

    def __init__(self, *events: str, silent: bool = False) -> None:
        self.events, self.silent, self.is_closed = events, silent, False

    async def run(self) -> AsyncGenerator[str]:
        try:
            for event in self.events:
                yield event
            if self.silent:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


def silence(absolved: list[str], **limits: float) -> Silence:
    return Silence(Limits(**limits), ManualClock(), absolve=absolved.append)


async def test_events_pass_and_absolve_their_member() -> None:
    absolved: list[str] = []
    stream = Stream("a", "b")
    found = [event async for event in silence(absolved).watched(journey(), stream.run())]
    assert found == ["a", "b"]
    assert absolved == ["d0", "d0"]
    assert stream.is_closed


async def test_before_the_first_token_its_budget_counts() -> None:
    stream = Stream("a", silent=True)
    with pytest.raises(TooLate, match=r"no first token within 0\.02 s") as caught:
        async for _ in silence([], first_token_s=0.02, progress_gap_s=60).watched(
            journey(), stream.run()
        ):
            pass
    assert caught.value.reason is Reason.FIRST_TOKEN_LATE
    assert stream.is_closed


async def test_after_it_a_gap_is_bounded_and_the_member_named() -> None:
    started = journey()
    started.transcript.take(1, 1, [20], (), None)
    stream = Stream(silent=True)
    with pytest.raises(Unavailable, match=r"decode member d0 gave no sign of life") as caught:
        async for _ in silence([], first_token_s=60, progress_gap_s=0.02).watched(
            started, stream.run()
        ):
            pass
    assert caught.value.reason is Reason.PEER_GONE
    assert stream.is_closed
