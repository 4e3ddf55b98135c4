"""One request from admission to last token: the whole journey, and the only place of retries.

`Pipeline.run` is the story: a place to run, then attempts until the answer is complete. An attempt
is a pair of members with a slot on decode, prefill up to the committed ticket, decode up to the
last token. Whatever fails leaves its attempt by an exception; `_give_up_or_go_on` decides, once,
whether another attempt follows. The next one sends the prompt and all tokens so far, so it goes on
where the last one broke, and the transcript drops what was said before.

Everything held (place, weight on members, slot, calls, hand-off) is held by a context manager of
this module, so an end, an error, a cancellation and a deadline all give it back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

from balancer.journey.cleanup import CleanUps
from balancer.journey.endings import Endings
from balancer.journey.failures import Remedy, final_error, newest_attempt, remedy_for
from balancer.journey.gate import Gate
from balancer.journey.handover import Routed
from balancer.journey.placement import Placer
from balancer.journey.prefixes import Prefixes
from balancer.journey.request import Delta, Final, FinishReason, Request
from balancer.journey.retry import Leg, Outage, RequestRetries, RetryBudget, backoff_s
from balancer.journey.running import RequestCancelled, RunningRequests, deadline_passed
from balancer.journey.silence import Silence
from balancer.journey.state import Emit, Handover, Journey, Limits, Pair
from balancer.journey.transcript import StreamBroken, Transcript
from balancer.membership import Member, Membership
from balancer.remote.peers import (
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
from balancer.text import IncrementalText
from runtime.channel import hop_timeout_s
from runtime.clock import Clock
from runtime.errors import DisaggError, NotFound, Overloaded, Reason, TooLate, Unavailable
from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)

_NEWS_S = 0.1  # for the end of a call that runs beside the one that failed
_RETRY_AFTER_S = 1.0  # a store under pressure is relieved hand-off by hand-off

Attempt = Callable[[Journey], Awaitable[None]]


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


class Pipeline:
    """The request's thread of control; belongs to one event loop.

    Args:
        running: One place per request id.
        gate: Admission.
        placer: Finds pairs of members.
        prefixes: Knows what of a prompt is stored.
        members: Told about members that vanished.
        peers: Calls to the members.
        handoffs: The store's hand-offs, to drop abandoned ones.
        cleanups: Runs what a leaving request cannot wait for.
        budget: Retries per minute.
        make_text: A fresh incremental decoder.
        overlap: Whether decode reads a hand-off while its prompt still computes.
    """

    def __init__(
        self,
        *,
        running: RunningRequests,
        gate: Gate,
        placer: Placer,
        prefixes: Prefixes,
        members: Membership,
        peers: Peers,
        handoffs: Handoffs,
        cleanups: CleanUps,
        budget: RetryBudget,
        make_text: Callable[[], IncrementalText],
        clock: Clock,
        limits: Limits,
        metrics: Metrics,
        overlap: bool,
    ) -> None:
        self._overlap = overlap
        self._running = running
        self._gate = gate
        self._placer = placer
        self._prefixes = prefixes
        self._members = members
        self._peers = peers
        self._handoffs = handoffs
        self._cleanups = cleanups
        self._budget = budget
        self._make_text = make_text
        self._clock = clock
        self._limits = limits
        self._silence = Silence(limits, clock, absolve=placer.absolve)
        self._metrics = metrics
        self._endings = Endings(metrics)

    async def run(self, request: Request, emit: Emit) -> Final:
        """Generates; hands every piece to `emit`, and returns what ends the stream.

        Raises:
            DisaggError: The request failed for good; nothing it held is left behind.
        """
        journey = self._set_out(request, emit)
        await self._travel(journey, self._attempt)
        return self._endings.arrived(journey, total_us=self._age_us(journey))

    async def route(
        self, request: Request, *, generated: Sequence[int] = (), last_attempt: int = 0
    ) -> Routed:
        """Prefills, and hands slot and ticket over to the caller.

        Args:
            generated: Tokens of the answer that exist already.
            last_attempt: Attempt that made them; 0 if there was none.

        Raises:
            DisaggError: The request failed for good; nothing it held is left behind.
        """
        deltas: list[Delta] = []

        async def keep(delta: Delta) -> None:
            deltas.append(delta)

        journey = self._set_out(request, keep)
        journey.attempt = last_attempt + 1
        journey.transcript.begin(journey.attempt)
        journey.transcript.take(journey.attempt, len(generated), generated, (), None)
        deltas.clear()
        await self._travel(journey, self._hand_over)
        final = self._endings.arrived(journey, total_us=self._age_us(journey))
        return Routed(
            attempt=journey.attempt,
            seq=final.seq,
            deltas=tuple(deltas),
            finish_reason=None if journey.handover is not None else final.finish_reason,
            handover=journey.handover,
            usage=final.usage,
            timing=final.timing,
        )

    async def _travel(self, journey: Journey, attempt: Attempt) -> None:
        """Attempts until the journey is over; everything held is given back on the way out."""
        request = journey.request
        try:
            self._refuse_under_pressure()
            async with self._running.scope(request):
                journey.stored_tokens = await self._prefixes.stored_tokens(request)
                async with self._gate.slot(self._placer.applicant(journey)):
                    while not journey.is_over:
                        try:
                            await attempt(journey)
                        except (DisaggError, StreamBroken) as error:
                            await self._give_up_or_go_on(journey, error)
        except RequestCancelled:
            journey.transcript.finish_reason = FinishReason.ABORT
            self._endings.cancelled(journey, "operator")
        except DisaggError as error:
            self._endings.failed(journey, error.reason)
            raise
        except asyncio.CancelledError:
            self._endings.cancelled(journey, "caller")
            self._endings.failed(journey, Reason.CALLER_LEFT)
            raise
        finally:
            self._placer.finished(journey)

    def _refuse_under_pressure(self) -> None:
        """New work is turned away before the store itself turns away what was admitted."""
        if why := self._handoffs.refusal:
            self._metrics.count("disagg_admission_rejections_total", reason=Reason.POOL_FULL)
            raise Overloaded(
                f"no new request is taken: {why}; try again in {_RETRY_AFTER_S:g} s",
                reason=Reason.POOL_FULL,
                retry_after_s=_RETRY_AFTER_S,
            )

    async def _attempt(self, journey: Journey) -> None:
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

    async def _hand_over(self, journey: Journey) -> None:
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
                            timing.decode_us = _micros(self._clock.now() - resumed_at)
                            return
                    case _:
                        pass
        raise _cut_short(pair.decode, "a finish reason")

    async def _relay(self, journey: Journey, tokens: Tokens) -> None:
        """Takes tokens in and hands out what is new."""
        delta = journey.transcript.take(
            tokens.attempt, tokens.seq, tokens.token_ids, tokens.logprobs, tokens.finish_reason
        )
        if not journey.timing.first_token_us and journey.transcript.seq:
            journey.timing.first_token_us = self._age_us(journey)
            self._metrics.observe(
                "gen_ai_server_time_to_first_token_seconds", journey.timing.first_token_us / 1e6
            )
        if delta is not None:
            await journey.emit(delta)

    async def _give_up_or_go_on(self, journey: Journey, error: DisaggError | StreamBroken) -> None:
        """Prepares the next attempt, or raises what the caller gets."""
        if journey.transcript.is_finished:
            return  # the answer is complete; what failed after it is not the caller's concern
        if isinstance(error, TooLate) and error.reason is Reason.DEADLINE:
            # The leg's time is ours less a margin, so it noticed first.
            raise deadline_passed(journey.request) from error
        now, limits = self._clock.now(), self._limits
        remedy = remedy_for(error)
        if remedy is not None and remedy.suspects_member:
            self._members.suspect(journey.member_id, str(error), now, limits.suspect_s)
        newest = newest_attempt(error)
        # The request is ours as long as its caller is: whoever took its number is overtaken.
        if remedy is None or not self._may_go_on(journey, remedy, newest, now):
            raise final_error(
                error, seq=journey.transcript.seq, attempts=journey.attempt
            ) from error
        self._metrics.count("disagg_redispatch_total", stage=journey.leg.value, reason=remedy.cause)
        _log.warning(
            "request.retry",
            request_id=journey.request.request_id,
            attempt=journey.attempt,
            leg=journey.leg.value,
            member=journey.member_id,
            cause=remedy.cause,
            error=str(error),
        )
        if remedy.avoids_member:
            journey.avoid.add(journey.member_id)
        journey.bypass_prefix = journey.bypass_prefix or remedy.bypasses_prefix
        journey.attempt = max(journey.attempt, newest) + 1
        journey.transcript.begin(journey.attempt)
        await asyncio.sleep(
            backoff_s(
                journey.request.request_id,
                journey.attempt,
                first_s=limits.backoff_first_s,
                max_s=limits.backoff_max_s,
            )
        )

    def _may_go_on(self, journey: Journey, remedy: Remedy, newest: int, now: float) -> bool:
        """Takes what another attempt costs; nothing while it waits for something to come back."""
        if remedy.is_outage:
            # A reservation takes nobody down, nor does a request take down the store.
            is_harmless = journey.leg is Leg.RESERVE or not remedy.suspects_member
            peer = "" if is_harmless else f"{journey.leg.value} {journey.group_id}"
            if journey.outage.covers(peer, now):
                return True
        if newest and journey.retries.try_take_over():
            return self._budget.try_spend(remedy.cause, now)
        return journey.retries.try_spend(journey.leg) and self._budget.try_spend(remedy.cause, now)

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

    def _set_out(self, request: Request, emit: Emit) -> Journey:
        transcript = Transcript(
            last_seq=request.last_seq,
            text=self._make_text(),
            stop=request.sampling.stop,
            min_tokens=request.sampling.min_tokens,
        )
        transcript.begin(1)
        retries = RequestRetries(
            prefill=self._limits.prefill_retries, decode=self._limits.decode_retries
        )
        return Journey(
            request=request,
            transcript=transcript,
            emit=emit,
            retries=retries,
            outage=Outage(self._limits.recovery_wait_s),
        )

    def _age_us(self, journey: Journey) -> int:
        return _micros(self._clock.now() - journey.request.arrived_at)

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


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
