"""`llmd_weighted`: a weighted sum of scorers, each in [0, 1], the highest sum wins.

    queue           requests that wait, 1 for the shortest queue and 0 for the longest
    kv_utilisation  share of the KV capacity that is free
    token_load      outstanding tokens, 1 for none and 0 for the most of any candidate
    prefix          share of the prompt that need not be computed
    running         running requests, as for the queue

Source: the scorers of the llm-d router; weights are an option.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from balancer.membership.members import Role
from balancer.membership.snapshot import Codes, Columns, Floats, Ints
from balancer.routing.composition import Case, Composed, Terms
from balancer.routing.decode import TwoAxes
from balancer.routing.estimates import Estimates
from balancer.routing.options import RoutingOptions

Scorer = Callable[[Case, Columns, Ints], Floats]


class Weighted:
    """The rule of this module, for both roles."""

    def __init__(self, options: RoutingOptions) -> None:
        unknown = sorted(options.weights.keys() - SCORERS.keys())
        if unknown:
            raise ValueError(f"weights {unknown} name no scorer; there are: {', '.join(SCORERS)}")
        self._weights = {name: weight for name, weight in options.weights.items() if weight}

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Takes out full decode members."""
        if columns.role is Role.DECODE:
            TwoAxes().exclude(case, columns, cause)

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """The weighted sum, negated since the lowest score wins."""
        total = np.zeros(len(rows))
        for name, weight in self._weights.items():
            total += weight * SCORERS[name](case, columns, rows)
        return [("minus_weighted_sum", -total)]


def _queue(_case: Case, columns: Columns, rows: Ints) -> Floats:
    waiting = np.maximum(columns.requests[rows] - columns.running[rows], 0)
    return _shortest_first(waiting)


def _running(_case: Case, columns: Columns, rows: Ints) -> Floats:
    return _shortest_first(columns.running[rows])


def _kv_utilisation(_case: Case, columns: Columns, rows: Ints) -> Floats:
    capacity = columns.fixed.kv_capacity[rows]
    used = columns.tokens[rows] / np.maximum(capacity, 1)
    return np.where(capacity > 0, np.clip(1 - used, 0.0, 1.0), 1.0)


def _token_load(_case: Case, columns: Columns, rows: Ints) -> Floats:
    tokens = columns.tokens[rows]
    free: Floats = 1 - tokens / max(1, int(tokens.max()))
    return free


def _prefix(case: Case, columns: Columns, rows: Ints) -> Floats:
    if columns.role is Role.DECODE:
        return np.zeros(len(rows))
    return case.cached_tokens(columns, rows) / max(1, case.request.num_tokens)


def _shortest_first(lengths: Ints) -> Floats:
    spread = max(1, int(np.ptp(lengths)))
    scores: Floats = (lengths.max() - lengths) / spread
    return scores


SCORERS: dict[str, Scorer] = {
    "queue": _queue,
    "kv_utilisation": _kv_utilisation,
    "token_load": _token_load,
    "prefix": _prefix,
    "running": _running,
}


def llmd_weighted(options: RoutingOptions) -> Composed:
    """The policy with these options.

    Raises:
        ValueError: A weight names no scorer.
    """
    rule = Weighted(options)
    return Composed(
        name="llmd_weighted",
        version=1,
        why="highest weighted sum of scores",
        prefill=rule,
        decode=rule,
        options=options,
        make_memory=lambda: Estimates(options),
    )
