"""Whether a failed attempt may be followed by another one. Pure.

Three bounds hold at once: per request by the leg that failed (prefill, decode), and per minute over
all requests, so that a sick cluster is not drowned in its own retries. Every retry is counted under
its cause.

What is merely down and may come back is waited for instead, with growing pauses and for a bounded
time: as long as an outage lasts, trying again costs none of the retries.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass


class Leg(enum.Enum):
    """Part of an attempt."""

    RESERVE = "reserve"
    PREFILL = "prefill"
    DECODE = "decode"


class RetryBudget:
    """A token bucket over all requests.

    Args:
        per_minute: Retries allowed per minute; also the size of the bucket.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._tokens = float(per_minute)
        self._filled_at: float | None = None
        self.spent: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()

    def try_spend(self, cause: str, now: float) -> bool:
        """Takes one retry for this cause; False if the minute's budget is used up."""
        if self._filled_at is not None:
            gain = (now - self._filled_at) * self._per_minute / 60.0
            self._tokens = min(float(self._per_minute), self._tokens + gain)
        self._filled_at = now
        if self._tokens < 1.0:
            self.denied[cause] += 1
            return False
        self._tokens -= 1.0
        self.spent[cause] += 1
        return True


@dataclass(slots=True, kw_only=True)
class RequestRetries:
    """Retries of one request: how many each leg has left.

    A slot that could not be reserved costs a decode retry: nothing was computed, but it bounds how
    long a request wanders. Taking over from an earlier life of the request (another balancer, or
    the same id used before) costs neither.
    """

    prefill: int
    decode: int
    takeover: int = 1

    def try_take_over(self) -> bool:
        """Takes the one free retry of a request whose id has been in use before."""
        self.takeover -= 1
        return self.takeover >= 0

    def try_spend(self, leg: Leg) -> bool:
        """Takes one retry for a failure of this leg; False if there is none left."""
        if leg is Leg.PREFILL:
            self.prefill -= 1
            return self.prefill >= 0
        self.decode -= 1
        return self.decode >= 0


class Outage:
    """What this request waits for to come back, from the first failure to the next progress.

    Args:
        window_s: How long after the first failure trying again costs nothing.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._lost: set[str] = set()
        self.since: float | None = None

    def covers(self, peer: str, now: float) -> bool:
        """Whether trying again after this failure is part of waiting, and so costs no retry.

        Args:
            peer: Whom the request was lost with. It may be what took that peer down, so that the
                first loss of each peer costs a retry; empty if it cannot be.
            now: Monotonic seconds.
        """
        if self.since is None:
            self.since = now
        is_known = not peer or peer in self._lost
        self._lost.add(peer)
        return is_known and now - self.since < self._window_s

    def end(self) -> None:
        """The request got on."""
        self.since = None
        self._lost.clear()


def backoff_s(request_id: str, attempt: int, *, first_s: float, max_s: float) -> float:
    """Pause before an attempt: doubling, with jitter between half and the whole of it.

    The jitter comes from the request's id, so that a replay waits as long.
    """
    whole = min(max_s, first_s * 2.0 ** max(0, attempt - 2))
    share = sum(map(ord, request_id)) * 2654435761 % 1024 / 1024
    return whole * (0.5 + share / 2)
