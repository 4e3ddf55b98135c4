"""What a balancer sees, as gauges: sizes of its queues, members and groups by their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from balancer.admission.admission import AdmissionStatistics
from balancer.membership import ExclusionCause, MemberView, Role
from runtime.metrics import Metrics

ROLE = "balancer"
_STATES = {
    None: "ready",
    ExclusionCause.NOT_READY: "not_ready",
    ExclusionCause.DRAINING: "draining",
    ExclusionCause.STALE: "stale",
    ExclusionCause.SUSPECT: "suspect",
    ExclusionCause.GROUP_INCOMPLETE: "group_incomplete",
}
# A snapshot knows no pairs; whoever places a request finds it out, and so do these gauges.
_MISMATCH = "mismatch"
_PARTNERS = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


def publish_sizes(metrics: Metrics, tiers: Sequence[str], sizes: AdmissionStatistics) -> None:
    """Requests that run and wait here, by length class; `tiers` names the classes."""
    for tier, running, waiting in zip(
        tiers, sizes.running_by_class, sizes.waiting_by_class, strict=True
    ):
        metrics.set("disagg_requests_running", running, role=ROLE, tier=tier)
        metrics.set("disagg_requests_waiting", waiting, role=ROLE, tier=tier)


def publish_members(metrics: Metrics, views: Sequence[MemberView]) -> None:
    """Members by what hinders them, and groups by whether each of their ranks is ready.

    A rank that was started anew is there twice for a while, under two names, and counts once.
    A mismatch is a member that would take work, beside members of the other role that would too,
    none of which stores KV in its form. While the other role has nobody, it only waits.
    """
    members: Counter[tuple[Role, str]] = Counter()
    ready: dict[tuple[Role, str, int], set[int]] = {}  # ranks by group, which has its size in it
    layouts: dict[Role, set[bytes]] = {role: set() for role in Role}
    for view in views:
        if view.exclusion is None:
            layouts[view.member.role].add(view.member.fingerprint)
    for view in views:
        member = view.member
        partners = layouts[_PARTNERS[member.role]]
        state = _STATES.get(view.exclusion, "not_ready")
        if view.exclusion is None and partners and member.fingerprint not in partners:
            state = _MISMATCH
        members[member.role, state] += 1
        ranks = ready.setdefault((member.role, member.group_id, member.group_size), set())
        if view.exclusion is None:
            ranks.add(member.rank)
    for role in Role:
        for state in (*_STATES.values(), _MISMATCH):
            metrics.set("disagg_members", members[role, state], role=role.value, state=state)
        groups = [(size, ranks) for (owner, _, size), ranks in ready.items() if owner is role]
        complete = sum(len(ranks) >= size for size, ranks in groups)
        metrics.set("disagg_groups", complete, role=role.value, state="complete")
        metrics.set("disagg_groups", len(groups) - complete, role=role.value, state="incomplete")
