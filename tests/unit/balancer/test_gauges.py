"""Members, groups and queues as gauges."""

from __future__ import annotations

from balancer.admission import Admission
from balancer.gauges import publish_members, publish_sizes
from balancer.membership import ExclusionCause, Member, MemberView, Role
from runtime.metrics import Metrics
from tests.fakes.memberships import member


def test_sizes_are_told_by_class() -> None:
    metrics, admission = Metrics(), Admission(max_running=1, max_waiting=4, num_classes=2)
    admission.offer("a", priority=0, now=0.0, length_class=1)
    admission.offer("b", priority=0, now=0.0, length_class=0)
    publish_sizes(metrics, ("short", "long"), admission.statistics())
    assert metrics.value("disagg_requests_running", tier="long") == 1
    assert metrics.value("disagg_requests_running", tier="short") == 0
    assert metrics.value("disagg_requests_waiting", tier="short") == 1


def test_a_group_is_complete_when_each_of_its_ranks_is_ready() -> None:
    metrics = Metrics()

    def view(name: str, group: str, exclusion: ExclusionCause | None) -> MemberView:
        made = member(name, role=Role.DECODE, group_id=group, group_size=2, rank=int(name[1]))
        return MemberView(
            member=made,
            age_s=0.0,
            outstanding_requests=0,
            outstanding_tokens=0,
            exclusion=exclusion,
        )

    views = [
        view("a0", "a", None),
        view("a1", "a", None),
        view("b0", "b", None),
        view("b1", "b", ExclusionCause.STALE),
        view("b1 of an earlier start", "b", ExclusionCause.GROUP_INCOMPLETE),
        view("c0", "c", ExclusionCause.BUSY),
        view("d1", "d", None),
        view("d1 started anew", "d", None),
    ]
    publish_members(metrics, views)
    assert metrics.value("disagg_members", role="decode", state="ready") == 5
    assert metrics.value("disagg_members", role="decode", state="stale") == 1
    assert metrics.value("disagg_members", role="decode", state="group_incomplete") == 1
    assert metrics.value("disagg_members", role="decode", state="not_ready") == 1
    assert metrics.value("disagg_groups", role="decode", state="complete") == 1
    assert metrics.value("disagg_groups", role="decode", state="incomplete") == 3
    assert metrics.value("disagg_members", role="prefill") == 0


def test_members_that_find_nobody_of_their_layout_are_a_mismatch() -> None:
    metrics = Metrics()

    def publish(*members: Member) -> dict[str, float]:
        views = [
            MemberView(member=made, age_s=0.0, outstanding_requests=0, outstanding_tokens=0)
            for made in members
        ]
        publish_members(metrics, views)
        return {
            f"{role} {state}": metrics.value("disagg_members", role=role, state=state)
            for role in ("prefill", "decode")
            for state in ("ready", "mismatch")
        }

    old, new = {"fingerprint": b"old"}, {"fingerprint": b"new"}
    decodes = [member("d0", **old), member("d1", **new)]
    assert publish(*decodes) == {
        "prefill ready": 0,
        "prefill mismatch": 0,
        "decode ready": 2,
        "decode mismatch": 0,
    }
    assert publish(*decodes, member("p0", Role.PREFILL, **old)) == {
        "prefill ready": 1,
        "prefill mismatch": 0,
        "decode ready": 1,
        "decode mismatch": 1,
    }
    assert publish(decodes[1], member("p0", Role.PREFILL, **old)) == {
        "prefill ready": 0,
        "prefill mismatch": 1,
        "decode ready": 0,
        "decode mismatch": 1,
    }
