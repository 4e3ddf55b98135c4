"""`sgl_bucket`: each prefill member serves one bucket of prompt lengths.

Boundaries are cut so that every bucket had the same number of prompt tokens lately, and cut anew
when the outstanding work of the members drifts apart by more than `bucket_drift`. A request goes to
the member of its bucket; if that one is no candidate, to the one of the nearest bucket.

Source: the bucket policy of the SGLang router.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from balancer.membership.snapshot import Codes, Columns, Ints
from balancer.routing.base import Knowledge
from balancer.routing.composition import Case, Composed, Terms
from balancer.routing.decode import TwoAxes
from balancer.routing.estimates import Estimates
from balancer.routing.events import Decided, Event, RoundBegan
from balancer.routing.options import RoutingOptions

_WINDOW = 1024  # prompts the boundaries are cut from
_SLACK_S = 0.1  # loads closer than this have not drifted


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Which member serves which lengths.

    Attributes:
        engines: Member ids, from the shortest prompts to the longest.
        boundaries: Length at which the bucket of the next member begins; one fewer than `engines`.
    """

    engines: tuple[str, ...] = ()
    boundaries: tuple[int, ...] = ()


class BucketMemory:
    """Estimates, and the boundaries as they were last cut; see `Memory`."""

    def __init__(self, options: RoutingOptions) -> None:
        self._options = options
        self._estimates = Estimates(options)
        self._lengths: deque[int] = deque(maxlen=_WINDOW)
        self._buckets = Buckets()
        self._next_round_at: float | None = None

    def observe(self, event: Event) -> None:
        """Takes one event; see `Memory`."""
        if isinstance(event, Decided):
            self._lengths.append(event.num_tokens)
        elif isinstance(event, RoundBegan):
            self._next_round_at = event.at + self._options.round_s
            self._begin_round(event)
        self._estimates.observe(event)

    def knowledge(self) -> Knowledge:
        """What decisions may know; see `Memory`."""
        return dataclasses.replace(self._estimates.knowledge(), own=self._buckets)

    def next_round_at(self, now: float) -> float:
        """The first decision begins a round, so that there are buckets at all; see `Memory`."""
        return now if self._next_round_at is None else self._next_round_at

    def _begin_round(self, event: RoundBegan) -> None:
        engines = tuple(engine_id for engine_id, _, _ in event.engines)
        loads = [quota_s for _, quota_s, _ in event.engines]
        has_drifted = bool(loads) and max(loads) > max(
            _SLACK_S, self._options.bucket_drift * min(loads)
        )
        if engines != self._buckets.engines or has_drifted:
            boundaries = cut(sorted(self._lengths), len(engines))
            self._buckets = Buckets(engines=engines, boundaries=boundaries)


def cut(lengths: list[int], num_buckets: int) -> tuple[int, ...]:
    """Boundaries that give every bucket about the same number of tokens.

    Args:
        lengths: Ascending; without any, all boundaries are 0 and the last bucket takes everything.
    """
    totals = list(accumulate(lengths))
    boundaries = []
    for index in range(1, num_buckets):
        if not lengths:
            boundaries.append(0)
            continue
        place = bisect_right(totals, totals[-1] * index / num_buckets)
        boundaries.append(lengths[min(place, len(lengths) - 1)])
    return tuple(boundaries)


class OwnBucket:
    """The rule of this module."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Nobody."""

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """How many buckets away a member's own is."""
        buckets = case.knowledge.own
        if not isinstance(buckets, Buckets) or not buckets.engines:
            return [("buckets_away", np.zeros(len(rows)))]
        wanted = bisect_right(buckets.boundaries, case.request.num_tokens)
        place_of = {name: place for place, name in enumerate(buckets.engines)}
        ids, far = columns.fixed.ids, len(buckets.engines)
        away = [abs(place_of.get(ids[row], wanted + far) - wanted) for row in rows.tolist()]
        return [("buckets_away", np.array(away))]


def sgl_bucket(options: RoutingOptions) -> Composed:
    """The policy with these options."""
    return Composed(
        name="sgl_bucket",
        version=1,
        why="the member of its length bucket",
        prefill=OwnBucket(),
        decode=TwoAxes(),
        options=options,
        make_memory=lambda: BucketMemory(options),
    )
