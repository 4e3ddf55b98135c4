"""`ondemand`: the balancer holds the queue, and a prefill member takes what it can start now.

A member with `busy_at` outstanding requests refuses; the next one is tried, and when all refuse the
request is held. Among those that accept, the one with the fewest requests, then rotation.

Source: P/D-Serve, on-demand forwarding.
"""

from __future__ import annotations

from balancer.membership.members import ExclusionCause
from balancer.membership.snapshot import Codes, Columns, Ints
from balancer.routing.composition import Case, Composed, Terms
from balancer.routing.decode import TwoAxes
from balancer.routing.estimates import Estimates
from balancer.routing.options import RoutingOptions
from balancer.routing.screening import exclude


class CanStartNow:
    """The rule of this module."""

    def exclude(self, case: Case, columns: Columns, cause: Codes) -> None:
        """Members that have enough to do."""
        exclude(cause, columns.requests >= case.options.busy_at, ExclusionCause.BUSY)

    def terms(self, _case: Case, columns: Columns, rows: Ints) -> Terms:
        """Outstanding requests."""
        return [("requests", columns.requests[rows])]


def ondemand(options: RoutingOptions) -> Composed:
    """The policy with these options."""
    return Composed(
        name="ondemand",
        version=1,
        why="a member that can start now",
        prefill=CanStartNow(),
        decode=TwoAxes(),
        options=options,
        make_memory=lambda: Estimates(options),
    )
