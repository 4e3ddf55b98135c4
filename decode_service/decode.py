"""One ticket's path through a decode rank: fetch, verify, resume, stream, release.

Everything a sequence holds (its place in the fence, its credit, bytes of fetched state, the
engine's handle) is a context manager of one task, so leaving the path by any door frees it. Knows
no wire: the face translates requests, events and errors.

Order of events: Resumed once, then Tokens with growing numbers; the last Tokens carries the finish
reason. A path that ends without an error ended with one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

from decode_service.credits import Credit, Credits
from decode_service.fetcher import Fetcher
from decode_service.prefetch import Handed, Prefetches, PrefetchRequest
from decode_service.tracing import GenerateSpans, fetching
from disagg import wire
from engine.async_engine import AsyncEngine, EngineStopped, RequestHandle
from engine.request import (
    ChunkDone,
    EngineRequest,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokenOut,
)
from kvstore.ticket import Ticket
from runtime.attempts import AttemptFence
from runtime.budget import Budget, Grant
from runtime.clock import Clock
from runtime.errors import (
    Bug,
    Conflict,
    FieldViolation,
    InvalidRequest,
    Mismatch,
    Overloaded,
    Reason,
)
from runtime.metrics import Metrics
from runtime.offload import CLEANUP_S

RETRY_AFTER_S = 0.05
"""Hint to a caller who found no room: about the time of a few steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    """A sequence to take over.

    Args:
        request_id: Of the caller.
        attempt: From 1; that of the ticket.
        ticket: Of the committed hand-off.
        token_ids: All tokens the ticket covers.
        num_generated: How many at the end of `token_ids` were generated.
        sampling: How to choose tokens.
        cache_salt: Tenant salt of the block chain.
        credit_id: Credit taken before; may be empty.
        needs_credit: Refuse it without an open credit: its caller is no part of the system.
    """

    request_id: str
    attempt: int
    ticket: Ticket
    token_ids: tuple[int, ...]
    num_generated: int
    sampling: SamplingParams
    cache_salt: str = ""
    credit_id: str = ""
    needs_credit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The state is here and verified."""

    num_bytes: int
    prefetched_bytes: int
    fetch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """New tokens, all that were ready, numbered without a gap."""

    tokens: tuple[TokenOut, ...]


DecodeEvent = Resumed | Tokens
Emit = Callable[[DecodeEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStatistics:
    """What a path holds at one moment; all zero at rest."""

    running: int
    open_credits: int
    leases: int
    bytes_in_flight: int
    waiting_for_bytes: int
    prefetching: int
    prefetched_bytes: int


class DecodePath:
    """The path of all sequences of one rank."""

    def __init__(
        self,
        *,
        engine: AsyncEngine,
        fetcher: Fetcher,
        prefetches: Prefetches,
        fingerprint: bytes,
        credits: Credits,
        budget: Budget,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._fetcher = fetcher
        self._prefetches = prefetches
        self._fingerprint = fingerprint
        self._credits = credits
        self._budget = budget
        self._clock = clock
        self._metrics = metrics
        self._sent = metrics.recorder("disagg_stream_messages_total", role="decode")
        self._fence = AttemptFence()

    async def reserve(self, request_id: str, num_tokens: int, fingerprint: bytes) -> Credit:
        """Takes one slot and KV room for a request that will come.

        Raises:
            InvalidRequest: Bad request id, or no tokens.
            Mismatch: The sender stores KV in another form.
            Overloaded: No slot or no room now.
        """
        problem = wire.request_id_problem(request_id)
        if problem is not None:
            raise _bad("request_id", problem)
        if num_tokens < 1:
            raise _bad("num_tokens", f"num_tokens is {num_tokens}: give at least 1")
        if fingerprint != self._fingerprint:
            raise Mismatch(
                f"KV layouts differ: the sender has {fingerprint.hex() or 'none'}, this member has "
                f"{self._fingerprint.hex()}; both need the same model, revision, block size and KV "
                "quantisers",
                reason=Reason.KV_LAYOUT_DIFFERS,
            )
        capacity = self._engine.statistics().kv_capacity_tokens
        if num_tokens > capacity:
            raise InvalidRequest(
                f"num_tokens is {num_tokens}, but a rank here holds {capacity} tokens of KV in "
                "all: lower max_tokens or shorten the prompt",
                reason=Reason.PROMPT_TOO_LONG,
            )
        await self.expire_credits()
        credit = self._credits.open(request_id, self._clock.now())
        try:
            granted = await self._engine.try_reserve(credit.credit_id, num_tokens)
        except BaseException:
            # The answer is lost, but the engine may have kept the room.
            self._credits.release(credit.credit_id)
            await self._free_room(credit.credit_id)
            raise
        if not granted:
            self._credits.release(credit.credit_id)
            raise Overloaded(
                f"no slot or no KV room for {num_tokens} tokens on this rank now; try another or "
                "later",
                reason=Reason.POOL_FULL,
                retry_after_s=RETRY_AFTER_S,
            )
        return credit

    async def release(self, credit_id: str) -> bool:
        """Gives a credit back; whether it was open. Twice is harmless."""
        if not self._credits.release(credit_id):
            return False
        await self._free_room(credit_id)
        return True

    async def expire_credits(self) -> int:
        """Gives back the room of credits whose deadline passed; how many."""
        lapsed = self._credits.expire(self._clock.now())
        for credit in lapsed:
            await self._free_room(credit.credit_id)
        return len(lapsed)

    async def prefetch(self, request: PrefetchRequest, counts: AsyncGenerator[int]) -> Handed:
        """Reads blocks of a hand-off before its ticket; see `Prefetches.run`.

        Raises:
            Conflict: The request holds no open credit of that name. Where the call itself is
                sound, its sequence was faster, or the credit lapsed or was given back meanwhile.
        """
        try:
            self._check_credit("begin.credit_id", request.credit_id, request.request_id)
        except Conflict:
            self._prefetches.overtaken()
            raise
        return await self._prefetches.run(request, counts)

    async def run(self, request: SequenceRequest, emit: Emit) -> None:
        """Takes a sequence from its ticket to its last token.

        Args:
            request: The sequence.
            emit: Receives the events in order; its failure ends the path.

        Raises:
            runtime.errors.DisaggError, engine.request.EngineError, kvstore.errors.KvStoreError:
                Nothing is left behind in the engine or the store.
        """
        check(request)
        if request.needs_credit:
            # Before the fence: the call may be about the request of another.
            self._check_credit("credit_id", request.credit_id, request.request_id)
        emit = self._counted(emit)
        engine_request = EngineRequest(
            request_id=f"{request.request_id}#{request.attempt}",
            token_ids=(*request.token_ids, request.ticket.first_token),
            num_generated=request.num_generated + 1,
            sampling=request.sampling,
            arrival=self._clock.now(),
        )
        # Before the fetch: a ticket is good once, so a bad request must not use it up.
        self._engine.check(engine_request)
        with self._fence.enter(request.request_id, request.attempt):
            async with self._room(request) as room:
                size = self._fetcher.size_of(len(request.token_ids))
                with await self._budget.take(size) as grant:
                    self._phase("handoff_wait", self._clock.now() - engine_request.arrival)
                    tokens, salt = request.token_ids, request.cache_salt
                    with fetching(request.ticket) as span:
                        async with self._prefetches.taken(
                            request.request_id, request.attempt, tokens, salt
                        ) as early:
                            fetched = await self._fetcher.fetch(request.ticket, tokens, salt, early)
                        span.set(
                            {
                                "disagg.kv.bytes": fetched.num_bytes,
                                "disagg.kv.prefetched_bytes": fetched.prefetched_bytes,
                                "disagg.verified": True,
                            }
                        )
                    await emit(
                        Resumed(
                            num_bytes=fetched.num_bytes,
                            prefetched_bytes=fetched.prefetched_bytes,
                            fetch_s=fetched.fetch_s,
                        )
                    )
                    self._phase("fetch", fetched.fetch_s)
                    submitted = self._clock.now()
                    handle = self._engine.submit(
                        replace(engine_request, image=fetched.image, reservation_id=room)
                    )
                    del fetched  # the engine has the state, and drops it once it is on the device
                    try:
                        with GenerateSpans(handle, submitted, self._clock) as spans:
                            await _stream(handle, grant, emit, spans)
                    finally:
                        # Who has the last token may leave before we are through.
                        if handle.started_at is not None:
                            self._phase("decode_queue", handle.started_at - submitted)
                            self._phase("decode", self._clock.now() - handle.started_at)

    def _counted(self, emit: Emit) -> Emit:
        async def counting(event: DecodeEvent) -> None:
            await emit(event)
            self._sent(1)

        return counting

    def _phase(self, phase: str, seconds: float) -> None:
        self._metrics.observe("disagg_phase_duration_seconds", max(0.0, seconds), phase=phase)

    def statistics(self) -> DecodeStatistics:
        """What is held now."""
        budget = self._budget.statistics()
        return DecodeStatistics(
            running=len(self._fence),
            open_credits=len(self._credits),
            leases=self._fetcher.leases,
            bytes_in_flight=budget.held,
            waiting_for_bytes=budget.num_waiting,
            prefetching=len(self._prefetches),
            prefetched_bytes=self._prefetches.held_bytes,
        )

    def _check_credit(self, field: str, credit_id: str, request_id: str) -> None:
        if not self._credits.holds(credit_id, request_id, self._clock.now()):
            raise Conflict(
                f"{field} is {credit_id[:40]!r}: that is no open credit of this request (any "
                "more); reserve a slot first, or ask for another route",
                reason=Reason.LEASE_LOST,
            )

    @asynccontextmanager
    async def _room(self, request: SequenceRequest) -> AsyncIterator[str | None]:
        """The room of the request's credit, for the body to use up; None without one."""
        if not request.credit_id:
            yield None
            return
        credit = self._credits.redeem(request.credit_id, request.request_id, self._clock.now())
        if credit is None:
            # Lapsed while the prompt was computed: the engine's queue decides now.
            yield None
            return
        try:
            yield credit.credit_id
        except BaseException:
            # No effect if the engine has taken the room over with the request.
            await self._free_room(credit.credit_id)
            raise

    async def _free_room(self, credit_id: str) -> None:
        """Gives room back to the engine; waits for its answer, but not for ever."""
        try:
            async with asyncio.timeout(CLEANUP_S):
                await self._engine.release_reservation(credit_id)
        except (TimeoutError, EngineStopped):
            # The engine thread has the command and obeys when its step ends; a stopped engine
            # holds nothing.
            return


async def _stream(handle: RequestHandle, grant: Grant, emit: Emit, spans: GenerateSpans) -> None:
    """Emits what is ready until the last token of the sequence."""
    async with handle:
        async for event in handle:
            # The engine has the state on its device now; the bytes here are free.
            grant.give_back()
            tokens: list[TokenOut] = []
            for ready in (event, *handle.take_ready()):
                if isinstance(ready, TokenOut):
                    tokens.append(ready)
                elif not isinstance(ready, ChunkDone):
                    await _end(tokens, ready, emit)
            if tokens:
                spans.tokens(len(tokens))
                if tokens[-1].is_last:
                    spans.last()
                await emit(Tokens(tokens=tuple(tokens)))
                if tokens[-1].is_last:
                    return
    raise Bug(f"decode of {handle.request_id} ended without a last token")


async def _end(
    tokens: list[TokenOut], event: RequestFinished | RequestFailed, emit: Emit
) -> NoReturn:
    """Ends the path by an event that brings no token."""
    if tokens:
        await emit(Tokens(tokens=tuple(tokens)))
    if isinstance(event, RequestFailed):
        raise event.error
    # Lengths were checked before, and nobody but this path aborts the request.
    raise Bug(f"decode of {event.request_id} ended by {event.finish_reason}")


def check(request: SequenceRequest) -> None:
    """Refuses what no store and no engine has to see; they check the rest themselves.

    Raises:
        InvalidRequest: With the field, its value and what would be accepted.
        Conflict: The ticket belongs to an older attempt.
    """
    problem = wire.request_id_problem(request.request_id)
    if problem is not None:
        raise _bad("request_id", problem)
    if request.attempt < 1:
        raise _bad("attempt", f"attempt is {request.attempt}: attempts count from 1")
    ticket = request.ticket
    if ticket.request_id != request.request_id:
        raise _bad(
            "ticket.request_id",
            f"ticket.request_id is {ticket.request_id!r}, but the call is for "
            f"{request.request_id!r}: send the ticket of this request",
        )
    if ticket.attempt < request.attempt:
        raise Conflict(
            f"the ticket is of attempt {ticket.attempt}, the call of attempt {request.attempt}: "
            "a newer attempt has a ticket of its own",
            reason=Reason.STALE_ATTEMPT,
        )
    if ticket.attempt > request.attempt:
        raise Conflict(
            f"attempt {request.attempt} is stale: its ticket is of attempt {ticket.attempt}",
            reason=Reason.STALE_ATTEMPT,
        )
    num_tokens = len(request.token_ids)
    if num_tokens == 0:
        raise _bad("token_ids", "token_ids is empty: send the tokens that the ticket covers")
    if num_tokens != ticket.num_tokens:
        raise _bad(
            "token_ids",
            f"{num_tokens} token_ids came, but the ticket covers {ticket.num_tokens}: send exactly "
            "those",
        )
    if request.num_generated >= num_tokens:
        raise _bad(
            "num_generated",
            f"num_generated is {request.num_generated} of {num_tokens} token_ids: a prompt of at "
            "least one token has to stand before what was generated",
        )
    if request.sampling.max_tokens <= request.num_generated + 1:
        raise _bad(
            "sampling.max_tokens",
            f"sampling.max_tokens is {request.sampling.max_tokens} with "
            f"{request.num_generated + 1} tokens generated: nothing is left to decode",
        )


def _bad(field: str, description: str) -> InvalidRequest:
    return InvalidRequest(
        description,
        reason=Reason.BAD_REQUEST,
        violations=(FieldViolation(field=field, description=description),),
    )
