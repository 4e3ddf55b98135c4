"""How long a leg of a request may be silent: its events pass through here, or it is given up.

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from balancer.journey.state import Journey, Limits
from runtime.clock import Clock
from runtime.errors import Reason, TooLate, Unavailable

Event = TypeVar("Event")


class Silence:
    """Bounds between the events of legs.

    Args:
        absolve: Told the id of a member that gave a sign of life.
    """

    def __init__(self, limits: Limits, clock: Clock, *, absolve: Callable[[str], None]) -> None:
        self._limits = limits
        self._clock = clock
        self._absolve = absolve

    async def watched(
        self, journey: Journey, stream: AsyncGenerator[Event]
    ) -> AsyncGenerator[Event]:
        """Yields the events of a leg; a leg that shows no sign of life is given up.

        Raises:
            TooLate: There is no first token in its time.
            Unavailable: The member is silent for too long.
        """
        async with aclosing(stream):
            while True:
                limit_s, is_first_token = self._limit_s(journey)
                try:
                    async with asyncio.timeout(limit_s):
                        event = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    if is_first_token:
                        raise TooLate(
                            f"no first token within {self._limits.first_token_s:g} s",
                            reason=Reason.FIRST_TOKEN_LATE,
                        ) from error
                    raise Unavailable(
                        f"{journey.leg.value} member {journey.member_id} gave no sign of life for "
                        f"{limit_s:.1f} s",
                        reason=Reason.PEER_GONE,
                    ) from error
                self._absolve(journey.member_id)
                yield event

    def _limit_s(self, journey: Journey) -> tuple[float, bool]:
        """How long the leg may be silent, and whether that is the budget of the first token.

        A prefill may wait long for its turn, so that before the first token only the budget of the
        first token counts.
        """
        if journey.transcript.seq:
            return self._limits.progress_gap_s, False
        due = journey.request.arrived_at + self._limits.first_token_s
        return max(0.0, due - self._clock.now()), True
