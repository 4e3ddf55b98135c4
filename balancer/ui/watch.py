"""Gathers what the status page shows, off the event loop as far as it goes.

However many browsers ask, a state is made at most every `_FRESH_S` seconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from balancer.assembly import Balancer
from balancer.explained import explained
from balancer.routing.options import class_limits
from balancer.ui.state import Facts, StoreFacts, finite, state_of
from disagg.plain import plain

_FRESH_S = 0.4  # less than the second at which pages ask
_MAX_DECISIONS = 8
_MAX_TRIPS = 12


class Watch:
    """The state of one balancer as JSON; belongs to one event loop.

    Args:
        version: Of this software.
    """

    def __init__(self, balancer: Balancer, version: str) -> None:
        self._balancer = balancer
        self._version = version
        self._started_at = balancer.clock.now()
        self._made_at = float("-inf")
        self._lock = asyncio.Lock()
        self._state = b""

    async def state(self) -> bytes:
        """What the page draws, see `balancer.ui.state`; JSON in UTF-8."""
        async with self._lock:
            if self._balancer.clock.now() - self._made_at >= _FRESH_S:
                is_reachable = await self._balancer.store.is_reachable()
                facts = self._facts(is_reachable)
                snapshot = self._balancer.metrics.snapshot  # walks every counter
                self._state = await asyncio.to_thread(lambda: encoded(state_of(facts, snapshot())))
                self._made_at = self._balancer.clock.now()
            return self._state

    async def decisions(self, request_id: str, *, what_if: bool) -> bytes:
        """The decisions on a request as `disagg explain --json` prints them; JSON in UTF-8.

        Args:
            request_id: Checked already.
            what_if: Also what would have changed the choice; takes some hundred decisions.
        """
        response = await explained(
            self._balancer.router,
            request_id,
            what_if=what_if,
            now=self._balancer.clock.now(),
            class_names=class_limits(self._balancer.settings.routing.boundaries),
            overseer=self._balancer.settings.http.ui_tenant,
        )
        return await asyncio.to_thread(
            lambda: encoded(
                {
                    "request_id": request_id,
                    "decisions": [plain(decision) for decision in response.decisions],
                }
            )
        )

    def _facts(self, is_reachable: bool) -> Facts:
        balancer, now = self._balancer, self._balancer.clock.now()
        sizes, pressure = balancer.admission.statistics(), balancer.store.pressure
        has_limit = pressure is not None and pressure.used_share > 0
        return Facts(
            version=self._version,
            model=balancer.codec.card.name,
            policy=balancer.router.policy.name,
            uptime_s=now - self._started_at,
            is_ready=balancer.host.health.is_ready,
            is_draining=balancer.host.is_draining,
            running=sizes.running,
            waiting=sizes.waiting,
            snapshot=balancer.members.snapshot(now),
            knowledge=balancer.router.knowledge(),
            boundaries=balancer.settings.routing.boundaries,
            tiers=balancer.tiers.loads(now),
            points=balancer.history.points(),
            records=balancer.router.decisions.recent(_MAX_DECISIONS),
            ended=balancer.recent.latest()[:_MAX_TRIPS],
            num_ended=balancer.recent.num_ended,
            num_tokens=balancer.recent.num_tokens,
            store=StoreFacts(
                is_reachable=is_reachable,
                refusal=balancer.store.refusal,
                used_share=pressure.used_share if pressure and has_limit else None,
                handoff_share=pressure.handoff_share if pressure and has_limit else None,
            ),
        )


def encoded(value: Mapping[str, object]) -> bytes:
    """As compact JSON; infinite values as words."""
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False).encode()
