"""The loop by which a member announces itself to one balancer.

It knows nothing of what is announced: a callable sends one announcement and returns how soon the
next is wanted. A balancer that is not up yet, or gone, is tried again with growing pauses for ever;
only a bug ends the loop.

    waiting ──beat ok──► waiting (interval asked for by the receiver)
       │ ▲
       │ └──beat ok──────────┐
       └──beat fails──► backing off (doubling up to the limit, jittered)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from runtime.clock import Clock, Uniform
from runtime.errors import DisaggError
from runtime.logging import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatLimits:
    """Bounds of the loop, all in seconds."""

    timeout_s: float = 2.5  # above the deadline of a call, which tells more
    min_interval_s: float = 0.05
    max_interval_s: float = 10.0
    min_backoff_s: float = 0.1
    max_backoff_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.min_interval_s <= self.max_interval_s:
            raise ValueError(
                f"min_interval_s {self.min_interval_s} and max_interval_s {self.max_interval_s}: "
                "need 0 < min <= max"
            )
        if not 0 < self.min_backoff_s <= self.max_backoff_s:
            raise ValueError(
                f"min_backoff_s {self.min_backoff_s} and max_backoff_s {self.max_backoff_s}: "
                "need 0 < min <= max"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatStatistics:
    """What the loop did so far."""

    beats: int
    failures: int
    consecutive_failures: int
    last_success: float | None  # Clock.now of the last accepted beat


class Heartbeat:
    """Announces to one receiver until cancelled; run it in a task group.

    Args:
        receiver: Name of the receiver, for logs.
        beat: Sends one announcement; returns seconds until the next is wanted. Called on the event
            loop, never twice at once, cancelled after `limits.timeout_s`. Twice is harmless.
        clock: For statistics.
        uniform: Jitter of the pauses after failures.
        limits: Bounds of the loop.
    """

    def __init__(
        self,
        receiver: str,
        beat: Callable[[], Awaitable[float]],
        *,
        clock: Clock,
        uniform: Uniform,
        limits: HeartbeatLimits | None = None,
    ) -> None:
        self._receiver = receiver
        self._beat = beat
        self._clock = clock
        self._uniform = uniform
        self._limits = limits or HeartbeatLimits()
        self._wake = asyncio.Event()
        self._beats = 0
        self._failures = 0
        self._consecutive = 0
        self._last_success: float | None = None

    async def run(self) -> None:
        """Announce for ever; ends only by cancellation or a bug in `beat`."""
        while True:
            self._wake.clear()
            pause_s = await self._announce()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def announce_now(self) -> None:
        """Send the next announcement at once: something in it changed."""
        self._wake.set()

    def statistics(self) -> HeartbeatStatistics:
        """What the loop did so far."""
        return HeartbeatStatistics(
            beats=self._beats,
            failures=self._failures,
            consecutive_failures=self._consecutive,
            last_success=self._last_success,
        )

    async def _announce(self) -> float:
        limits = self._limits
        try:
            async with asyncio.timeout(limits.timeout_s):
                interval_s = await self._beat()
        except (grpc.RpcError, DisaggError, OSError, TimeoutError) as error:
            self._failures += 1
            self._consecutive += 1
            if self._consecutive == 1:
                _log.warning("heartbeat.lost", receiver=self._receiver, error=describe(error))
            doublings = min(self._consecutive - 1, 16)
            backoff_s = min(limits.max_backoff_s, limits.min_backoff_s * float(1 << doublings))
            return backoff_s * (0.5 + 0.5 * self._uniform.random())
        if self._consecutive:
            _log.info("heartbeat.back", receiver=self._receiver, after=self._consecutive)
        self._beats += 1
        self._consecutive = 0
        self._last_success = self._clock.now()
        return min(max(interval_s, limits.min_interval_s), limits.max_interval_s)


def describe(error: BaseException) -> str:
    """One line about a failed call, for logs."""
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
