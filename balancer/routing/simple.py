"""The policies everybody knows: one rule for both roles.

    round_robin     members take turns
    random          a counter-based draw
    least_requests  fewest outstanding requests
    least_tokens    fewest outstanding tokens
    power_of_two    of two drawn members the one with fewer outstanding requests

Decode members without a slot or room are passed over by all of them, as by every policy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from balancer.membership.members import Role
from balancer.membership.snapshot import Codes, Columns, Ints
from balancer.routing.composition import Case, Composed, Terms
from balancer.routing.decode import TwoAxes
from balancer.routing.draws import two_of, uniforms
from balancer.routing.estimates import Estimates
from balancer.routing.options import RoutingOptions

Scorer = Callable[[Case, Columns, Ints], Terms]


class Scored:
    """A rule that is nothing but its scores, on either role."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Takes out full decode members."""
        if columns.role is Role.DECODE:
            TwoAxes().exclude(case, columns, cause)

    def terms(self, case: Case, columns: Columns, rows: Ints) -> Terms:
        """See `simple`."""
        return self._scorer(case, columns, rows)


def _round_robin(case: Case, _columns: Columns, rows: Ints) -> Terms:
    return [("turns_to_wait", (np.arange(len(rows)) - case.rotation) % len(rows))]


def _random(case: Case, columns: Columns, rows: Ints) -> Terms:
    return [("draw", uniforms(case.seed(), columns, rows))]


def _least_requests(_case: Case, columns: Columns, rows: Ints) -> Terms:
    return [("requests", columns.requests[rows])]


def _least_tokens(_case: Case, columns: Columns, rows: Ints) -> Terms:
    return [("tokens", columns.tokens[rows])]


def _power_of_two(case: Case, columns: Columns, rows: Ints) -> Terms:
    drawn = two_of(case.seed(), columns, rows, np.arange(len(rows)))
    return [("drawn", drawn), ("requests", columns.requests[rows])]


_SIMPLE: dict[str, tuple[str, Scorer]] = {
    "round_robin": ("members take turns", _round_robin),
    "random": ("drawn at random", _random),
    "least_requests": ("fewest outstanding requests", _least_requests),
    "least_tokens": ("fewest outstanding tokens", _least_tokens),
    "power_of_two": ("fewer requests of two drawn members", _power_of_two),
}

SIMPLE_NAMES = tuple(_SIMPLE)


def simple(name: str, options: RoutingOptions) -> Composed:
    """The policy of that name, one of `SIMPLE_NAMES`."""
    why, scorer = _SIMPLE[name]
    return Composed(
        name=name,
        version=1,
        why=why,
        prefill=Scored(scorer),
        decode=Scored(scorer),
        options=options,
        make_memory=lambda: Estimates(options),
    )
