"""The last requests that ended: what they asked for in numbers, where their time went, how they
ended. Pure; no text, no tokens; of a tenant only the name that stands in its ids.

For whoever looks at the balancer now. What has to be kept longer is in metrics and traces.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from balancer.journey.request import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request that ended.

    Attributes:
        ended_at: Monotonic seconds of the balancer's clock.
        outcome: `stop`, `length`, `abort`, `routed` (the caller goes on alone) or `failed`.
        reason: Why it failed; empty if it did not.
        timing: Not changed any more.
    """

    request_id: str
    ended_at: float
    outcome: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    attempts: int
    timing: Timing


class RecentRequests:
    """The last `max_requests` requests that ended, and counts since start; one event loop."""

    def __init__(self, max_requests: int = 64) -> None:
        if max_requests < 1:
            raise ValueError(f"max_requests {max_requests} must be at least 1")
        self._kept: deque[Ended] = deque(maxlen=max_requests)
        self.num_ended = 0
        self.num_tokens = 0

    def append(self, ended: Ended) -> None:
        """Keeps it; drops the oldest if there are too many."""
        self._kept.append(ended)
        self.num_ended += 1
        self.num_tokens += ended.generated_tokens

    def latest(self) -> tuple[Ended, ...]:
        """Those that are kept, newest first."""
        return tuple(reversed(self._kept))
