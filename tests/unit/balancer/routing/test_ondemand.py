"""`ondemand`: a member takes what it can start now."""

from __future__ import annotations

from balancer.membership.members import ExclusionCause
from balancer.routing.base import Verdict
from balancer.routing.options import RoutingOptions
from tests.fakes.placements import engine, place, sink


def test_members_with_enough_to_do_refuse() -> None:
    views = [engine("p0", requests=1), engine("p1"), sink()]
    placement = place("ondemand", views)
    assert placement.prefill_id == "p1"
    causes = {item.member_id: item.cause for item in placement.exclusions}
    assert causes == {"p0": ExclusionCause.BUSY}
    assert place("ondemand", [views[0], sink()]).verdict is Verdict.HOLD


def test_how_much_is_enough_is_an_option() -> None:
    views = [engine("p0", requests=2), engine("p1", requests=1), sink()]
    assert place("ondemand", views, options=RoutingOptions(busy_at=2)).prefill_id == "p1"
    assert place("ondemand", [views[0], sink()], options=RoutingOptions(busy_at=3)).prefill_id
