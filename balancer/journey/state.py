"""State of one request on its way, and the bounds it travels under.

Used by the pipeline and the placer, which alone change it, on one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from balancer.journey.request import Delta, Request, Timing
from balancer.journey.retry import Leg, Outage, RequestRetries
from balancer.journey.transcript import Transcript
from balancer.membership import Member
from balancer.remote.legs import LegCall, Ticket

Emit = Callable[[Delta], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one request.

    Attributes:
        first_token_s: From arrival to the first token.
        progress_gap_s: Between two signs of life of a leg.
        reserve_s: For the answer to a reservation.
        slot_wait_s: Waiting while every decode member is full.
        recovery_wait_s: Waiting, before a repeated attempt, for members or the store to come back.
        prefill_retries: Repetitions after a prefill failed.
        decode_retries: Repetitions after a reservation or a decode failed.
        suspect_s: How long a member that vanished gets no new work.
        backoff_first_s: Pause before the second attempt.
        backoff_max_s: Longest pause before an attempt.
    """

    first_token_s: float = 300.0
    progress_gap_s: float = 120.0
    reserve_s: float = 5.0
    slot_wait_s: float = 60.0
    recovery_wait_s: float = 10.0
    prefill_retries: int = 1
    decode_retries: int = 2
    suspect_s: float = 2.0
    backoff_first_s: float = 0.05
    backoff_max_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A prefill and a decode member, and the slot taken on the latter."""

    prefill: Member
    decode: Member
    credit_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What a caller that goes on alone tells decode, and on which member.

    From then on slot and hand-off are the caller's; each lapses by itself if it never comes.
    """

    pair: Pair
    call: LegCall
    ticket: Ticket


@dataclass(slots=True, kw_only=True)
class Journey:
    """State of one request.

    Attributes:
        leg: Part of the attempt that is on.
        member_id: The member that works on it.
        group_id: Its group.
        fingerprint: Its KV layout and model.
        outage: What is waited for.
        bypass_prefix: Stored prefixes are not to be trusted for this request.
        avoid: Members this request should not meet again.
        stored_tokens: Prompt tokens that were in the store when the request came.
        is_placed: The router knows the request.
        prefilled_attempt: The latest attempt whose prefill is known to be over.
        has_used_slot: Decode has begun this attempt, so its slot is not there to be given back.
        handover: Set once the caller goes on alone.
        last_token_at: When tokens were last handed out; None before the first.
        max_gap_s: Longest time between two of them.
    """

    request: Request
    transcript: Transcript
    emit: Emit
    retries: RequestRetries
    outage: Outage
    attempt: int = 1
    leg: Leg = Leg.RESERVE
    member_id: str = ""
    group_id: str = ""
    fingerprint: bytes = b""
    bypass_prefix: bool = False
    avoid: set[str] = field(default_factory=set)
    cached_tokens: int = 0
    stored_tokens: int = 0
    is_placed: bool = False
    prefilled_attempt: int = 0
    timing: Timing = field(default_factory=Timing)
    has_used_slot: bool = False
    handover: Handover | None = None
    last_token_at: float | None = None
    max_gap_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do here."""
        is_complete = self.transcript.is_finished or self.transcript.seq >= self.request.max_tokens
        return is_complete or self.handover is not None

    @property
    def expected_cached(self) -> int:
        """Tokens that prefill will not compute, as far as is known."""
        return 0 if self.bypass_prefix else self.stored_tokens

    def prefill_call(self) -> LegCall:
        """What prefill is told: the prompt, and behind it what exists of the answer."""
        return self._call(self.transcript.token_ids)

    def decode_call(self) -> LegCall:
        """What decode is told: the tokens with KV. The last one has none; it is in the ticket."""
        return self._call(self.transcript.token_ids[:-1])

    def _call(self, generated: tuple[int, ...]) -> LegCall:
        return LegCall(
            request_id=self.request.request_id,
            attempt=self.attempt,
            token_ids=self.request.token_ids + generated,
            num_generated=len(generated),
            sampling=self.request.sampling,
            cache_salt=self.request.cache_salt,
        )

    @property
    def work_id(self) -> str:
        """Name of this attempt's weight on members."""
        return f"{self.request.request_id}#{self.attempt}"

    def age_us(self, now: float) -> int:
        """Microseconds since the request came."""
        return round((now - self.request.arrived_at) * 1e6)

    def enter(self, leg: Leg, member: Member) -> None:
        """From now on this member works on this leg."""
        self.leg, self.member_id, self.group_id = leg, member.member_id, member.group_id
        self.fingerprint = member.fingerprint
