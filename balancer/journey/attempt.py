"""One attempt: a pair with a slot, prefill up to the committed ticket, decode up to the last token.

Whatever fails leaves its attempt by an exception; what the attempt held (weight on members, slot,
calls, hand-off) is held by a context manager, so an end, an error, a cancellation and a deadline
all give it back. Whether another attempt follows is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Protocol

from balancer.journey.cleanup import CleanUps
from balancer.journey.meter import Meter
from balancer.journey.placement import Placer
from balancer.journey.retry import Leg
from balancer.journey.silence import Silence
from balancer.journey.state import Handover, Journey, Pair
from balancer.membership import Member
from balancer.remote.legs import (
    BlocksStored,
    Committed,
    FirstToken,
    LegCall,
    Peers,
    PrefixHit,
    Resumed,
    Ticket,
    Tokens,
)
from balancer.remote.prefetch import ReadAhead
from runtime.channel import hop_timeout_s
from runtime.clock import Clock
from runtime.errors import NotFound, Reason, Unavailable
from runtime.metrics import Metrics
from runtime.telemetry import current

_NEWS_S = 0.1  # for the end of a call that runs beside the one that failed


class Handoffs(Protocol):
    """What the balancer may do to hand-offs in the store: begin none, or drop one."""

    @property
    def refusal(self) -> str:
        """Why no new one should begin; empty if one may. Answers at once."""
        ...

    async def abort(self, ticket: Ticket) -> None:
        """Drops a hand-off that no decode took over; idempotent."""
        ...

    async def abort_request(self, fingerprint: bytes, request_id: str, attempt: int) -> None:
        """Drops the hand-offs of an attempt whose ticket may have been lost."""
        ...


class Attempts:
    """Runs single attempts of journeys; belongs to one event loop.

    Args:
        placer: Finds pairs of members.
        peers: Calls to the members.
        handoffs: The store's hand-offs, to drop abandoned ones.
        cleanups: Runs what a leaving request cannot wait for.
        silence: Tells a leg that works from one that is stuck.
        meter: Told about tokens that go out.
        overlap: Whether decode reads a hand-off while its prompt still computes.
    """

    def __init__(
        self,
        *,
        placer: Placer,
        peers: Peers,
        handoffs: Handoffs,
        cleanups: CleanUps,
        silence: Silence,
        clock: Clock,
        metrics: Metrics,
        meter: Meter,
        overlap: bool,
    ) -> None:
        self._overlap = overlap
        self._placer = placer
        self._peers = peers
        self._handoffs = handoffs
        self._cleanups = cleanups
        self._silence = silence
        self._clock = clock
        self._metrics = metrics
        self._meter = meter
        self._sent = metrics.recorder("disagg_stream_messages_total", role="balancer")

    async def serve(self, journey: Journey) -> None:
        """One attempt: a pair with a slot, a prefill, and unless that ended it, a decode."""
        async with self._placer.reserved(journey) as pair:
            call = journey.prefill_call()
            with self._read_ahead(journey, pair, call) as ahead:
                try:
                    ticket = await self._prefill(journey, pair, call, ahead)
                    self._placer.take_weight_off(journey, pair.prefill)
                    if ticket is not None:
                        with self._dropped_unless_finished(journey, ticket):
                            await ahead.raise_if_corrupt()
                            await self._decode(journey, pair, ticket)
                except NotFound:
                    # What is missing may be what decode has just found damaged.
                    await ahead.raise_if_corrupt(wait_s=_NEWS_S)
                    raise

    async def hand_over(self, journey: Journey) -> None:
        """One attempt whose decode the caller runs: a pair with a slot, and a prefill."""
        async with self._placer.reserved(journey) as pair:
            ticket = await self._prefill(journey, pair, journey.prefill_call(), None)
            if ticket is not None and not journey.transcript.is_finished:
                call = journey.decode_call()
                journey.handover = Handover(pair=pair, call=call, ticket=ticket)

    async def _prefill(
        self, journey: Journey, pair: Pair, call: LegCall, ahead: ReadAhead | None
    ) -> Ticket | None:
        """Prompt to ticket; the first token is handed out on the way. None: nothing to decode."""
        journey.enter(Leg.PREFILL, pair.prefill)
        timing, transcript = journey.timing, journey.transcript
        timing.prefill_member = pair.prefill.member_id
        committed: Committed | None = None
        resumed: int | None = None
        stream = self._peers.prefill(
            pair.prefill,
            call,
            bypass_prefix=journey.bypass_prefix,
            report_stored=self._overlap and ahead is not None,
            timeout_s=self._remaining_s(journey),
        )
        attempt, is_over = journey.attempt, False
        try:
            async with aclosing(self._silence.watched(journey, stream)) as events:
                async for event in events:
                    match event:
                        case PrefixHit():
                            resumed = event.cached_tokens
                            timing.prefix_load_us = event.load_us
                            timing.prefix_bytes += event.num_bytes
                            if journey.attempt == 1:
                                prompt_tokens = len(journey.request.token_ids)
                                journey.cached_tokens = min(event.cached_tokens, prompt_tokens)
                        case BlocksStored() if ahead is not None:
                            ahead.stored(event.num_blocks)
                            await ahead.raise_if_corrupt()
                        case FirstToken():
                            timing.prefill_queue_us = event.queue_us
                            timing.prefill_us = event.compute_us
                            self._placer.prefill_ended(
                                journey, compute_s=event.compute_us / 1e6, cached_tokens=resumed
                            )
                            await self._relay(journey, _as_tokens(event, call))
                            if transcript.is_finished and event.finish_reason is None:
                                return None  # a stop text: the hand-off is not wanted any more
                        case Committed():
                            timing.commit_us = event.commit_us
                            timing.published_bytes += event.published_bytes
                            # Read on to the end: a cancelled prefill takes its hand-off back.
                            committed = event
                        case _:
                            pass
            is_over = True
        finally:
            self._placer.prefill_ended(journey, compute_s=None)  # unless it was told before
            if ahead is not None:
                ahead.finish()
            if not is_over:
                self._look_for_ticket(journey, pair.prefill, attempt, committed)
        ticket = committed.ticket if committed is not None else None
        if ticket is None and not transcript.is_finished:
            raise _cut_short(pair.prefill, "a ticket")
        return ticket

    async def _decode(self, journey: Journey, pair: Pair, ticket: Ticket) -> None:
        """Ticket to last token."""
        journey.enter(Leg.DECODE, pair.decode)
        timing = journey.timing
        timing.decode_member = pair.decode.member_id
        resumed_at = self._clock.now()
        stream = self._peers.decode(
            pair.decode,
            journey.decode_call(),
            ticket,
            pair.credit_id,
            timeout_s=self._remaining_s(journey),
        )
        async with aclosing(self._silence.watched(journey, stream)) as events:
            async for event in events:
                journey.has_used_slot = True  # it was taken before the first event
                match event:
                    case Resumed():
                        resumed_at = self._clock.now()
                        timing.fetch_us = event.fetch_us
                        timing.fetched_bytes += event.fetched_bytes
                        timing.prefetched_bytes += event.prefetched_bytes
                    case Tokens():
                        # The first token of a prefill does not count: each attempt has one.
                        journey.outage.end()
                        await self._relay(journey, event)
                        if journey.transcript.is_finished:
                            timing.decode_us = round((self._clock.now() - resumed_at) * 1e6)
                            return
                    case _:
                        pass
        raise _cut_short(pair.decode, "a finish reason")

    async def _relay(self, journey: Journey, tokens: Tokens) -> None:
        """Takes tokens in and hands out what is new."""
        before, now = journey.transcript.seq, self._clock.now()
        delta = journey.transcript.take(
            tokens.attempt, tokens.seq, tokens.token_ids, tokens.logprobs, tokens.finish_reason
        )
        if not journey.timing.first_token_us and journey.transcript.seq:
            journey.timing.first_token_us = journey.age_us(now)
            current().event("first_token")
        self._meter.tokens(journey, journey.transcript.seq - before, now)
        if delta is not None:
            await journey.emit(delta)
            self._sent(1)

    @contextmanager
    def _read_ahead(self, journey: Journey, pair: Pair, call: LegCall) -> Iterator[ReadAhead]:
        """Lets decode read what the prefill of this attempt stores; ends with the attempt."""
        ahead = ReadAhead(
            lambda: self._peers.prefetch(
                pair.decode, call, pair.credit_id, timeout_s=self._remaining_s(journey)
            ),
            lambda: journey.enter(Leg.DECODE, pair.decode),
        )
        try:
            yield ahead
        finally:
            if ahead.is_open:
                self._cleanups.spawn("end_prefetch", self._end_prefetch(ahead))

    async def _end_prefetch(self, ahead: ReadAhead) -> None:
        if failure := await ahead.close():
            self._metrics.count("disagg_prefetch_total", outcome=failure.reason.lower())

    @contextmanager
    def _dropped_unless_finished(self, journey: Journey, ticket: Ticket) -> Iterator[None]:
        """Drops the hand-off from the store if its decode does not come to a good end."""
        try:
            yield
        finally:
            if not journey.transcript.is_finished:
                self._cleanups.spawn("drop_handoff", self._handoffs.abort(ticket))

    def _look_for_ticket(
        self, journey: Journey, member: Member, attempt: int, committed: Committed | None
    ) -> None:
        """Drops the hand-off of a prefill that was left before its end."""
        if committed is None:
            search = self._handoffs.abort_request(
                member.fingerprint, journey.request.request_id, attempt
            )
            self._cleanups.spawn("find_handoff", search)
        elif committed.ticket is not None:
            self._cleanups.spawn("drop_handoff", self._handoffs.abort(committed.ticket))

    def _remaining_s(self, journey: Journey) -> float:
        return hop_timeout_s(journey.request.deadline - self._clock.now(), math.inf)


def _as_tokens(first: FirstToken, call: LegCall) -> Tokens:
    return Tokens(
        attempt=call.attempt,
        seq=call.num_generated + 1,
        token_ids=(first.token_id,),
        logprobs=first.logprobs,
        finish_reason=first.finish_reason,
    )


def _cut_short(member: Member, missing: str) -> Unavailable:
    return Unavailable(
        f"{member.role.value} member {member.member_id} ended its stream without {missing}",
        reason=Reason.STREAM_INTERRUPTED,
    )
