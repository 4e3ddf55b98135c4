"""A pair of members with a slot, for the length of one attempt.

The router chooses and records, the weight of the request goes on both members before anything is
awaited (so that the next decision sees it), then decode is asked for a slot. A member that has no
room is passed over; when all are full, or when the policy holds the request back, it waits, within
bounds, for somebody to end. Whatever way the attempt ends, weight and slot go back, and the router
is told what became of the prefill and of the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from balancer.journey.cleanup import CleanUps
from balancer.journey.failures import Refused, no_pair_error
from balancer.journey.gate import Applicant
from balancer.journey.request import FinishReason
from balancer.journey.retry import Leg
from balancer.journey.state import Journey, Limits, Pair
from balancer.journey.tiers import Tiers
from balancer.membership import ExclusionCause, Member, Membership
from balancer.remote.legs import Peers
from balancer.router import Router
from balancer.routing.base import Placement, PlacementRequest, Verdict
from runtime.channel import hop_timeout_s
from runtime.clock import Clock
from runtime.errors import DisaggError, Overloaded, Reason, TooLate, Unavailable
from runtime.metrics import Metrics
from runtime.telemetry import Span, current

_CLEANUP_S = 1.0
_LOOK_AGAIN_S = 0.25  # a member may get room without telling us
_RETRY_AFTER_S = 1.0
_PASSING = (
    ExclusionCause.SUSPECT,
    ExclusionCause.STALE,
    ExclusionCause.NOT_READY,
    ExclusionCause.GROUP_INCOMPLETE,
)
_OUTCOMES = {
    Verdict.PLACE: "pair",
    Verdict.HOLD: "hold",
    Verdict.REJECT: "reject",
    Verdict.NO_PAIR: "none",
}


class Placer:
    """Finds and holds pairs; belongs to one event loop.

    Args:
        members: Who could serve.
        router: Chooses a pair and keeps the record of every choice.
        tiers: Told about prefill work that begins and ends.
        peers: Calls to the members.
        cleanups: Gives slots back.
        is_store_down: Whether the store did not answer when it was last asked.
    """

    def __init__(
        self,
        *,
        members: Membership,
        router: Router,
        tiers: Tiers,
        peers: Peers,
        cleanups: CleanUps,
        clock: Clock,
        limits: Limits,
        metrics: Metrics,
        is_store_down: Callable[[], bool] = lambda: False,
    ) -> None:
        self._members = members
        self._router = router
        self._tiers = tiers
        self._peers = peers
        self._cleanups = cleanups
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._is_store_down = is_store_down
        self._room = asyncio.Event()
        self._held = 0

    def applicant(self, journey: Journey) -> Applicant:
        """The request as it asks for admission."""
        request, num_tokens = journey.request, len(journey.request.token_ids)
        quota = self._router.knowledge().quota
        length_class = self._tiers.class_of(num_tokens)
        current().set({"disagg.tier": self._tiers.names[length_class]})
        return Applicant(
            request_id=request.request_id,
            priority=request.priority,
            length_class=length_class,
            tenant=request.tenant,
            uncached_tokens=max(1, num_tokens - journey.stored_tokens),
            deadline=request.deadline,
            needs_s=quota.seconds(num_tokens, journey.stored_tokens),
        )

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
        began = self._clock.now()
        span = current().child("balancer.route", {"disagg.attempt": journey.attempt})
        with span.aside():
            pair = await self._find_pair(journey, span)
        self._metrics.observe(
            "disagg_phase_duration_seconds", self._clock.now() - began, phase="route"
        )
        if journey.attempt == 1:
            arrived_at = journey.request.arrived_at
            journey.timing.placement_us = round((self._clock.now() - arrived_at) * 1e6)
        try:
            yield pair
        finally:
            self.take_weight_off(journey, pair.prefill, pair.decode)
            if not journey.has_used_slot and journey.handover is None:
                self._cleanups.spawn("release_slot", self._release(pair.decode, pair.credit_id))

    async def _release(self, decode: Member, credit_id: str) -> None:
        await self._peers.release(decode, credit_id, timeout_s=_CLEANUP_S)

    def take_weight_off(self, journey: Journey, *members: Member) -> None:
        """The attempt's work on these members is done; idempotent."""
        now = self._clock.now()
        for member in members:
            self._members.unassign(member.member_id, journey.work_id, now=now)

    def prefill_ended(
        self, journey: Journey, *, compute_s: float | None, cached_tokens: int | None = None
    ) -> None:
        """The prefill of this attempt is over; only the first word on an attempt counts.

        Args:
            compute_s: What it took to compute; None if it failed.
            cached_tokens: What it took from the store; None if it did not say.
        """
        if journey.prefilled_attempt == journey.attempt:
            return
        journey.prefilled_attempt = journey.attempt
        self._tiers.end(journey.work_id)
        self._router.prefill_ended(
            journey.request.request_id,
            self._clock.now(),
            compute_s=compute_s,
            cached_tokens=cached_tokens,
        )
        if self._held:
            self.look_again()

    def finished(self, journey: Journey) -> None:
        """The request left for good; to be called once."""
        transcript = journey.transcript
        is_complete = transcript.is_finished or transcript.seq >= journey.request.max_tokens
        if transcript.finish_reason is FinishReason.ABORT or journey.handover is not None:
            is_complete = False
        if journey.is_placed:  # else another call may run under this id
            self._router.finished(
                journey.request.request_id,
                self._clock.now(),
                output_tokens=transcript.seq if is_complete else None,
            )
        self.look_again()

    async def _find_pair(self, journey: Journey, span: Span) -> Pair:
        """Chooses until a decode member grants a slot; waits, within bounds, for room."""
        # What a repeated attempt waits for went away before the search began.
        started_at = self._clock.now() if journey.outage.since is None else journey.outage.since
        full: set[str] = set()
        while True:
            self._room.clear()
            placement = self._place(journey, full)
            self._describe(span, journey, placement)
            if placement.verdict is Verdict.REJECT:
                self._metrics.count("disagg_admission_rejections_total", reason="SLO_MISSED")
                raise Refused(
                    f"the request is refused: {placement.reason}; try again in "
                    f"{placement.retry_after_s:.1f} s",
                    retry_after_s=placement.retry_after_s,
                )
            if placement.verdict is Verdict.HOLD:
                await self._hold(journey, placement)
                full.clear()
                continue
            if placement.prefill is not None and placement.decode is not None:
                prefill, decode = placement.prefill.member, placement.decode.member
                credit_id = await self._reserve(journey, placement, prefill, decode)
                if credit_id is not None:
                    return Pair(prefill=prefill, decode=decode, credit_id=credit_id)
                full.add(decode.member_id)
                continue
            if journey.avoid:  # better a member that failed before than none
                journey.avoid.clear()
                continue
            error = no_pair_error(
                placement,
                retry_after_s=_RETRY_AFTER_S,
                is_store_down=self._is_store_down(),
            )
            if self._clock.now() - started_at >= self._patience_s(journey, placement, error):
                raise error
            full.clear()
            await self._wait_for_room(_LOOK_AGAIN_S)

    def _describe(self, span: Span, journey: Journey, placement: Placement) -> None:
        """The latest decision, as far as a span tells it; `Explain` has the rest."""
        if not span.is_recording:
            return
        span.set(
            {
                "disagg.route.policy": self._router.policy.name,
                "disagg.route.decision_id": journey.request.request_id,
                "disagg.route.candidates": len(placement.candidates),
                "disagg.route.prefill": placement.prefill_id,
                "disagg.route.decode": placement.decode_id,
                "disagg.route.margin": placement.decode_side.margin()[1],
            }
        )

    async def _hold(self, journey: Journey, placement: Placement) -> None:
        """Waits for somebody to end, or until the policy wants to be asked again.

        Raises:
            TooLate: There is no first token in its time.
        """
        due = journey.request.arrived_at + self._limits.first_token_s
        if not journey.transcript.seq and self._clock.now() >= due:
            raise TooLate(
                f"no first token within {self._limits.first_token_s:g} s: {placement.reason}",
                reason=Reason.FIRST_TOKEN_LATE,
            )
        self._held += 1
        try:
            await self._wait_for_room(min(placement.retry_after_s, _LOOK_AGAIN_S))
        finally:
            self._held -= 1

    async def _wait_for_room(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._room.wait()

    def _place(self, journey: Journey, full: set[str]) -> Placement:
        """Asks the router, which keeps the record."""
        now, request = self._clock.now(), journey.request
        num_tokens = len(request.token_ids) + journey.transcript.seq
        asked = PlacementRequest(
            request_id=request.request_id,
            attempt=journey.attempt,
            num_tokens=num_tokens,
            max_new_tokens=request.max_tokens - journey.transcript.seq,
            avoid=self._others(journey, now) | journey.avoid,
            full=frozenset(full),
            cached_tokens=journey.expected_cached,
            priority=request.priority,
            tenant=request.tenant,
            arrived_at=request.arrived_at,
            deadline=request.deadline,
            ttft_slo_s=request.ttft_slo_s,
            tpot_slo_s=request.tpot_slo_s,
        )
        placement = self._router.place(asked, now).placement
        journey.is_placed = True
        self._count(_OUTCOMES[placement.verdict], placement)
        return placement

    def _others(self, journey: Journey, now: float) -> frozenset[str]:
        """Members of another model or KV layout than an answer began with: none may go on with it.

        Empty until a token went out; from then on one answer is one model's, also in an upgrade.
        """
        if not journey.transcript.seq or not journey.fingerprint:
            return frozenset()  # nothing yet, or it came with the call: who made it is not known
        members = (view.member for view in self._members.views(now))
        return frozenset(
            member.member_id for member in members if member.fingerprint != journey.fingerprint
        )

    async def _reserve(
        self, journey: Journey, placement: Placement, prefill: Member, decode: Member
    ) -> str | None:
        """Puts the request's weight on both members and takes a slot; None if there is none."""
        journey.enter(Leg.RESERVE, decode)
        journey.has_used_slot = False
        request, now = journey.request, self._clock.now()
        num_tokens = len(request.token_ids) + journey.transcript.seq
        # Before the first await: the next decision has to see this one.
        self._members.assign(
            prefill.member_id, journey.work_id, num_tokens, quota_s=placement.quota_s, now=now
        )
        self._members.assign(
            decode.member_id, journey.work_id, num_tokens + placement.output_tokens, now=now
        )
        self._tiers.begin(
            journey.work_id,
            placement.length_class,
            max(1, num_tokens - journey.expected_cached),
            now,
        )
        for member in (prefill, decode):
            self._members.probe(member.member_id, now)
        timeout_s = hop_timeout_s(request.deadline - now, self._limits.reserve_s)
        credit_id: str | None = None
        try:
            # A caller that leaves now must not leave a slot behind that nobody knows of.
            credit_id = await self._cleanups.take(
                "release_slot",
                self._peers.reserve(
                    decode,
                    request.request_id,
                    len(request.token_ids) + request.max_tokens,
                    timeout_s=timeout_s,
                ),
                lambda taken: self._release(decode, taken),
            )
            self.absolve(decode.member_id)
        except Overloaded:
            self._count("full", placement)
            self.absolve(decode.member_id)
        except TooLate as error:
            raise Unavailable(
                f"decode member {decode.member_id} did not answer a reservation in {timeout_s:.1f}"
                " s",
                reason=Reason.PEER_GONE,
            ) from error
        finally:
            if credit_id is None:
                self._tiers.end(journey.work_id)
                self.take_weight_off(journey, prefill, decode)
        return credit_id

    def _count(self, outcome: str, placement: Placement) -> None:
        labels = {
            "policy": self._router.policy.name,
            "tier": self._tiers.names[placement.length_class],
            "outcome": outcome,
        }
        self._metrics.count("disagg_route_decisions_total", 1, **labels)
        num_candidates = len(placement.prefill_side.rows) + len(placement.decode_side.rows)
        self._metrics.observe("disagg_route_candidates", num_candidates, **labels)

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
