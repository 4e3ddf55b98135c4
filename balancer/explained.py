"""Explanations of placement on their way to whoever asks: made in a thread, sent as messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from balancer.explain.decisions import DecisionRecord
from balancer.explain.explanation import Explanation, SideExplanation, explain
from balancer.explain.what_if import Change
from balancer.membership.members import Role
from balancer.router import Router
from balancer.routing.base import Policy, Verdict
from disagg.v1 import membership_pb2, routing_pb2
from runtime.access import visible_ids

ROLE_VALUES = {
    Role.PREFILL: membership_pb2.MEMBER_ROLE_PREFILL,
    Role.DECODE: membership_pb2.MEMBER_ROLE_DECODE,
}


async def explained(
    router: Router,
    request_id: str,
    *,
    what_if: bool,
    now: float,
    class_names: Sequence[str] = (),
    overseer: str = "",
) -> routing_pb2.ExplainResponse:
    """The decisions on a request, decided again; empty if none is kept, or not for the caller.

    Args:
        what_if: Also search for what would have changed the choice, for the last decision of each
            attempt that found a pair.
        now: Seconds of the clock that decisions are dated by.
        class_names: Names of the length classes.
        overseer: Tenant whose keys see the requests of all; see `visible_ids`.
    """
    found = map(router.decisions.explain, visible_ids(request_id, overseer=overseer))
    records = next(filter(None, found), ())
    searched = _last_placed(records) if what_if else set()
    response = await asyncio.to_thread(_explain, records, router.policy, searched, now)
    for decision in response.decisions:
        decision.class_names.extend(class_names)
    return response


def _last_placed(records: Sequence[DecisionRecord]) -> set[int]:
    """Indices of the last decision of each attempt that found a pair."""
    last = {
        record.request.attempt: index
        for index, record in enumerate(records)
        if record.placement.verdict is Verdict.PLACE
    }
    return set(last.values())


def _explain(
    records: Sequence[DecisionRecord], policy: Policy, searched: set[int], now: float
) -> routing_pb2.ExplainResponse:
    response = routing_pb2.ExplainResponse()
    for index, record in enumerate(records):
        what_if = index in searched
        found = explain(record, policy, what_if=what_if)
        message = decision_message(found, age_s=now - found.decided_at)
        message.has_changes = what_if
        response.decisions.append(message)
    return response


def decision_message(found: Explanation, *, age_s: float) -> routing_pb2.Decision:
    """An explanation as a message."""
    return routing_pb2.Decision(
        attempt=found.attempt,
        age_s=age_s,
        policy=found.policy,
        policy_version=found.policy_version,
        rotation=found.rotation,
        verdict=found.verdict,
        reason=found.reason,
        num_tokens=found.num_tokens,
        cached_tokens=found.cached_tokens,
        length_class=found.length_class,
        quota_s=found.quota_s,
        output_tokens=found.output_tokens,
        quota_coefficients=found.quota_coefficients,
        prefill=_side(found.prefill),
        decode=_side(found.decode),
        is_reproduced=found.is_reproduced,
        changes=map(_change, found.changes),
    )


def _side(side: SideExplanation) -> routing_pb2.DecisionSide:
    margin_name, margin = side.margin
    return routing_pb2.DecisionSide(
        chosen_id=side.chosen_id,
        considered=[
            routing_pb2.ConsideredMember(
                member_id=member.member_id,
                is_chosen=member.is_chosen,
                age_s=member.age_s,
                outstanding_requests=member.outstanding_requests,
                outstanding_tokens=member.outstanding_tokens,
                outstanding_quota_s=member.outstanding_quota_s,
                score=[
                    routing_pb2.ScoreTerm(name=name, value=value) for name, value in member.score
                ],
                length_class=member.length_class,
            )
            for member in side.considered
        ],
        excluded=[
            routing_pb2.ExcludedMember(
                member_id=item.member_id, cause=item.cause.value, detail=item.detail
            )
            for item in side.excluded
        ],
        runner_up_id=side.runner_up_id,
        margin_name=margin_name,
        margin=margin,
        ties=side.ties,
    )


def _change(change: Change) -> routing_pb2.DecisionChange:
    return routing_pb2.DecisionChange(
        role=ROLE_VALUES[change.role],
        member_id=change.member_id,
        input=change.column,
        before=change.before,
        after=change.after,
        chosen_id=change.chosen_id,
    )
