"""Whether another attempt follows a failed one: decided here, once, for every failure.

The next attempt sends the prompt and all tokens so far, so it goes on where the last one broke, and
the transcript drops what was said before.
"""

from __future__ import annotations

import asyncio

from balancer.journey.failures import Remedy, final_error, newest_attempt, remedy_for
from balancer.journey.retry import Leg, RetryBudget, backoff_s
from balancer.journey.running import deadline_passed
from balancer.journey.state import Journey, Limits
from balancer.journey.transcript import StreamBroken
from balancer.membership import Membership
from runtime.clock import Clock
from runtime.errors import DisaggError, Reason, TooLate
from runtime.logging import get_logger
from runtime.metrics import Metrics

_log = get_logger(__name__)


class Recovery:
    """Prepares journeys for their next attempt; belongs to one event loop.

    Args:
        members: Told about members that vanished.
        budget: Retries per minute.
    """

    def __init__(
        self,
        *,
        members: Membership,
        budget: RetryBudget,
        limits: Limits,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._members = members
        self._budget = budget
        self._limits = limits
        self._clock = clock
        self._metrics = metrics

    async def give_up_or_go_on(self, journey: Journey, error: DisaggError | StreamBroken) -> None:
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
