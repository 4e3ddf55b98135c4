"""Decode placement on two axes: number of requests and KV length.

    score = max((requests + 1) / slots, (kv + prompt + expected output) / kv capacity)

Ranks of a decode group step together, so the fullest one sets the pace of all: the lowest maximum
wins, then the lower sum, then rotation. A member without a free slot, or whose KV would not leave
the reserve free, is no candidate; `look_ahead` lets so many requests be prefilled for slots that
are still taken. With several balancers every view is stale and all would pick the same best member
(a herd), so each draws two of the best quarter and takes the better one.
"""

from __future__ import annotations

import numpy as np

from balancer.membership.members import ExclusionCause
from balancer.membership.snapshot import Codes, Columns, Floats, Ints
from balancer.routing.composition import Case, Terms
from balancer.routing.draws import two_of
from balancer.routing.screening import exclude

_UNBOUNDED = float(1 << 30)  # of a member that does not say how much fits
_BEST_SHARE = 4  # one in so many candidates is among the best


class TwoAxes:
    """The rule of this module."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Takes out members without a free slot or without room for the prompt."""
        fixed, options = columns.fixed, case.options
        slots = fixed.max_running + options.look_ahead
        exclude(
            cause, (fixed.max_running > 0) & (columns.requests + 1 > slots), ExclusionCause.FULL
        )
        reserve = np.ceil(options.reserve_share * fixed.kv_capacity)
        needed = columns.tokens + case.request.num_tokens + reserve
        is_full = (fixed.kv_capacity > 0) & (needed > fixed.kv_capacity)
        exclude(cause, is_full, ExclusionCause.FULL)

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """The fuller axis, then the sum of both."""
        fuller, total = two_axes(case, columns, rows)
        terms: Terms = [("fuller_axis", fuller), ("both_axes", total)]
        return among_the_best(case, columns, rows, terms)


def two_axes(case: Case, columns: Columns, rows: Ints) -> tuple[Floats, Floats]:
    """Fuller axis and sum of both per candidate, each as a share of what fits."""
    fixed = columns.fixed
    slots = np.where(fixed.max_running > 0, fixed.max_running, _UNBOUNDED)[rows]
    room = np.where(fixed.kv_capacity > 0, fixed.kv_capacity, _UNBOUNDED)[rows]
    requests = (columns.requests[rows] + 1) / slots
    kv = (columns.tokens[rows] + case.request.num_tokens + case.output_tokens) / room
    return np.maximum(requests, kv), requests + kv


def among_the_best(case: Case, columns: Columns, rows: Ints, terms: Terms) -> Terms:
    """Puts a column before the others that leaves two drawn ones of the best quarter.

    Changes nothing for a balancer that is alone. More load never helps a member: its draw does not
    depend on its place, and being less good can only take it out of the pool.
    """
    if case.options.replicas < 2 or len(rows) < 3:
        return terms
    order = np.lexsort([column for _, column in reversed(terms)])
    pool = np.sort(order[: max(2, len(rows) // _BEST_SHARE)])
    return [("drawn", two_of(case.seed(), columns, rows, pool)), *terms]
