"""The last minutes of what the status page draws as lines. Pure: values and `now` in, points out.

Points are `STEP_S` apart and there are at most `MAX_POINTS`, so that a page which is opened late
shows the same as one that was open all the time. Nothing is kept in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

STEP_S = 2.0
MAX_POINTS = 90
_RATE_S = 20.0  # long enough for a steady figure, short enough to follow a change


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One moment.

    Attributes:
        at: Monotonic seconds.
        shares: Part of each length class of the prompt tokens handed out in the last round, 0 to 1;
            all 0 if there were none.
        num_ended, num_tokens: Requests that ended and tokens they got, since start.
    """

    at: float
    shares: tuple[float, ...]
    num_ended: int
    num_tokens: int


class History:
    """Points of the last `STEP_S * MAX_POINTS` seconds; belongs to one event loop."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)

    def take(
        self, now: float, *, quota_tokens: Sequence[int], num_ended: int, num_tokens: int
    ) -> None:
        """Keeps a point if the last one is old enough; may be called as often as one likes.

        Args:
            quota_tokens: Prompt tokens handed out in the last round, by length class.
            num_ended, num_tokens: See `Point`.
        """
        # A call that comes a little early is not put off to the next one.
        if self._points and now - self._points[-1].at < STEP_S * 0.9:
            return
        total = sum(quota_tokens)
        shares = tuple(value / total if total else 0.0 for value in quota_tokens)
        self._points.append(
            Point(at=now, shares=shares, num_ended=num_ended, num_tokens=num_tokens)
        )

    def points(self) -> tuple[Point, ...]:
        """Oldest first."""
        return tuple(self._points)


def rates(
    points: Sequence[Point], now: float, num_ended: int, num_tokens: int
) -> tuple[float, float]:
    """Requests that ended and tokens they got, per second of the last twenty.

    Args:
        now: Seconds of the clock that the points are dated by.
        num_ended, num_tokens: As of now.
    """
    young = [point for point in points if now - point.at <= _RATE_S]
    if not young or now <= young[0].at:
        return 0.0, 0.0
    elapsed_s = now - young[0].at
    return (num_ended - young[0].num_ended) / elapsed_s, (
        num_tokens - young[0].num_tokens
    ) / elapsed_s
