"""A pair of members with a slot, for the length of one attempt.

The policy chooses, the decision is recorded, the weight of the request goes on both members before
anything is awaited (so that the next decision sees it), then decode is asked for a slot. A member
that has no room is passed over; when all are full the request waits, within bounds, for one that
ends. Whatever way the attempt ends, weight and slot go back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from balancer.decisions import DecisionRing, decide
from balancer.journey.cleanup import CleanUps
from balancer.journey.failures import no_pair_error
from balancer.journey.retry import Leg
from balancer.journey.state import Journey, Limits, Pair
from balancer.membership import ExclusionCause, Member, Membership
from balancer.remote.peers import Peers
from balancer.routing.base import Placement, PlacementRequest, Policy
from runtime.channel import hop_timeout_s
from runtime.clock import Clock
from runtime.errors import DisaggError, Overloaded, Reason, TooLate, Unavailable
from runtime.metrics import Metrics

_CLEANUP_S = 1.0
_LOOK_AGAIN_S = 0.25  # a member may get room without telling us
_RETRY_AFTER_S = 1.0
_PASSING = (ExclusionCause.SUSPECT, ExclusionCause.STALE, ExclusionCause.NOT_READY)


class Placer:
    """Finds and holds pairs; belongs to one event loop.

    Args:
        members: Who could serve.
        policy: Chooses a pair.
        decisions: Keeps the record of every choice.
        peers: Calls to the members.
        cleanups: Gives slots back.
    """

    def __init__(
        self,
        *,
        members: Membership,
        policy: Policy,
        decisions: DecisionRing,
        peers: Peers,
        cleanups: CleanUps,
        clock: Clock,
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self._members = members
        self._policy = policy
        self._decisions = decisions
        self._peers = peers
        self._cleanups = cleanups
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._rotation = 0
        self._room = asyncio.Event()

    def look_again(self) -> None:
        """Wakes requests that wait for room or for a member; cheap, any number of times."""
        self._room.set()

    def absolve(self, member_id: str) -> None:
        """A member gave a sign of life; those who waited for it may come."""
        if self._members.absolve(member_id):
            self.look_again()

    @asynccontextmanager
    async def reserved(self, journey: Journey) -> AsyncIterator[Pair]:
        """A pair with a slot on its decode member; the slot goes back unless it was used up."""
        pair = await self._find_pair(journey)
        if journey.attempt == 1:
            arrived_at = journey.request.arrived_at
            journey.timing.placement_us = round((self._clock.now() - arrived_at) * 1e6)
        try:
            yield pair
        finally:
            self.take_weight_off(journey, pair.prefill, pair.decode)
            is_used_up = journey.leg is Leg.DECODE and journey.transcript.is_finished
            if not is_used_up and journey.handover is None:
                self._cleanups.spawn(
                    "release_slot",
                    self._peers.release(pair.decode, pair.credit_id, timeout_s=_CLEANUP_S),
                )

    def take_weight_off(self, journey: Journey, *members: Member) -> None:
        """The attempt's work on these members is done; idempotent."""
        for member in members:
            self._members.unassign(member.member_id, journey.work_id)

    async def _find_pair(self, journey: Journey) -> Pair:
        """Chooses until a decode member grants a slot; waits, within bounds, for room."""
        # What a repeated attempt waits for went away before the search began.
        started_at = self._clock.now() if journey.outage.since is None else journey.outage.since
        full: set[str] = set()
        while True:
            self._room.clear()
            placement = self._place(journey, full)
            if placement.prefill is not None and placement.decode is not None:
                prefill, decode = placement.prefill.member, placement.decode.member
                credit_id = await self._reserve(journey, prefill, decode)
                if credit_id is not None:
                    return Pair(prefill=prefill, decode=decode, credit_id=credit_id)
                full.add(decode.member_id)
                continue
            if journey.avoid:  # better a member that failed before than none
                journey.avoid.clear()
                continue
            error = no_pair_error(placement, retry_after_s=_RETRY_AFTER_S)
            if self._clock.now() - started_at >= self._patience_s(journey, placement, error):
                raise error
            full.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._room.wait()

    def _place(self, journey: Journey, full: set[str]) -> Placement:
        """Asks the policy and keeps the record."""
        now = self._clock.now()
        request = PlacementRequest(
            request_id=journey.request.request_id,
            attempt=journey.attempt,
            num_tokens=len(journey.request.token_ids) + journey.transcript.seq,
            max_new_tokens=journey.request.max_tokens - journey.transcript.seq,
            avoid=frozenset(journey.avoid),
            full=frozenset(full),
        )
        record = decide(
            self._policy, request, self._members.views(now), rotation=self._rotation, now=now
        )
        self._rotation += 1
        self._decisions.append(record)
        self._count("none" if record.placement.decode is None else "pair")
        return record.placement

    async def _reserve(self, journey: Journey, prefill: Member, decode: Member) -> str | None:
        """Puts the request's weight on both members and takes a slot; None if there is none."""
        journey.enter(Leg.RESERVE, decode)
        request = journey.request
        num_tokens = len(request.token_ids) + request.max_tokens
        # Before the first await: the next decision has to see this one.
        self._members.assign(
            prefill.member_id, journey.work_id, len(request.token_ids) + journey.transcript.seq
        )
        self._members.assign(decode.member_id, journey.work_id, num_tokens)
        now = self._clock.now()
        for member in (prefill, decode):
            self._members.probe(member.member_id, now)
        remaining_s = request.deadline - now
        timeout_s = hop_timeout_s(remaining_s, self._limits.reserve_s)
        credit_id: str | None = None
        try:
            credit_id = await self._peers.reserve(
                decode, request.request_id, num_tokens, timeout_s=timeout_s
            )
            self.absolve(decode.member_id)
        except Overloaded:
            self._count("full")
            self.absolve(decode.member_id)
        except TooLate as error:
            raise Unavailable(
                f"decode member {decode.member_id} did not answer a reservation in {timeout_s:.1f}"
                " s",
                reason=Reason.PEER_GONE,
            ) from error
        finally:
            if credit_id is None:
                self.take_weight_off(journey, prefill, decode)
        return credit_id

    def _count(self, outcome: str) -> None:
        self._metrics.count(
            "disagg_route_decisions_total", policy=self._policy.name, outcome=outcome
        )

    def _patience_s(self, journey: Journey, placement: Placement, error: DisaggError) -> float:
        """How long to wait for what is missing, counted from the begin of the search.

        A first attempt does not wait for members that are not there; it does for one that is only
        under suspicion, silent for a moment or not ready (it is not while the store is away), and a
        repeated attempt waits for members to come back.
        """
        if isinstance(error, Overloaded):
            return self._limits.slot_wait_s
        may_return = any(exclusion.cause in _PASSING for exclusion in placement.exclusions)
        if isinstance(error, Unavailable) and (journey.attempt > 1 or may_return):
            return self._limits.recovery_wait_s
        return 0.0
