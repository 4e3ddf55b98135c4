"""A decision record as facts for people and for the wire: plain values, nothing left to compute.

Whoever asks gets the record decided again on the spot, so an explanation says whether the record
alone still gives the same answer, and on request what would have changed it.
"""

from __future__ import annotations

from dataclasses import dataclass

from balancer.explain.decisions import DecisionRecord, re_execute
from balancer.explain.what_if import Change, what_would_change
from balancer.membership.members import Role
from balancer.routing.base import Placement, Policy
from balancer.routing.judgement import Exclusion, Judgement
from balancer.routing.shares import Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsideredMember:
    """A candidate: what was known of it, how old that was, and its score.

    Attributes:
        score: Terms by name, most important first; lower is better.
        length_class: The class whose engine it is; None: any, or a policy without classes.
    """

    member_id: str
    role: Role
    is_chosen: bool
    age_s: float
    outstanding_requests: int
    outstanding_tokens: int
    outstanding_quota_s: float
    score: tuple[tuple[str, float], ...]
    length_class: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideExplanation:
    """One role of a decision.

    Attributes:
        considered: The candidates, best first.
        runner_up_id: The best candidate that was not chosen; empty if there is none.
        margin: Name of the first term in which it differs from the winner, and by how much.
        ties: How many candidates were as good as the winner.
    """

    role: Role
    chosen_id: str
    considered: tuple[ConsideredMember, ...]
    excluded: tuple[Exclusion, ...]
    runner_up_id: str
    margin: tuple[str, float]
    ties: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One decision.

    Attributes:
        quota_coefficients: a, b and c of the fitted cost; see `balancer.routing.quota`.
        is_reproduced: Whether deciding again from the record alone gave the same answer.
        changes: What would have changed the choice, smallest first; empty unless asked for.
    """

    request_id: str
    attempt: int
    decided_at: float
    policy: str
    policy_version: int
    rotation: int
    verdict: str
    reason: str
    num_tokens: int
    cached_tokens: int
    length_class: int
    quota_s: float
    output_tokens: int
    quota_coefficients: tuple[float, float, float]
    prefill: SideExplanation
    decode: SideExplanation
    is_reproduced: bool
    changes: tuple[Change, ...] = ()


def explain(record: DecisionRecord, policy: Policy, *, what_if: bool = False) -> Explanation:
    """Everything a record has to say.

    Args:
        what_if: Also search for what would have changed the choice; costs some hundred decisions.

    Raises:
        ValueError: The policy is another one, or another version, than the one that decided.
    """
    placement, request = record.placement, record.request
    quota = record.knowledge.quota
    return Explanation(
        request_id=request.request_id,
        attempt=request.attempt,
        decided_at=record.decided_at,
        policy=record.policy,
        policy_version=record.policy_version,
        rotation=record.rotation,
        verdict=placement.verdict.value,
        reason=placement.reason,
        num_tokens=request.num_tokens,
        cached_tokens=request.cached_tokens,
        length_class=placement.length_class,
        quota_s=placement.quota_s,
        output_tokens=placement.output_tokens,
        quota_coefficients=(quota.a, quota.b, quota.c),
        prefill=_side(record, placement.prefill_side),
        decode=_side(record, placement.decode_side),
        is_reproduced=re_execute(record, policy) == placement,
        changes=what_would_change(record, policy) if what_if else (),
    )


def trace_attributes(placement: Placement, policy: str) -> dict[str, str | int | float]:
    """The few facts of a decision that go on its trace span; no text, no per-member values."""
    prefill, decode = placement.prefill_side, placement.decode_side
    return {
        "placement.policy": policy,
        "placement.verdict": placement.verdict.value,
        "placement.prefill": placement.prefill_id,
        "placement.decode": placement.decode_id,
        "placement.length_class": placement.length_class,
        "placement.quota_s": placement.quota_s,
        "placement.wait_s": placement.wait_s,
        "placement.prefill_candidates": len(prefill.rows),
        "placement.decode_candidates": len(decode.rows),
        "placement.prefill_margin": prefill.margin()[1],
        "placement.decode_margin": decode.margin()[1],
    }


def _side(record: DecisionRecord, side: Judgement) -> SideExplanation:
    columns = side.columns
    shares = record.knowledge.own if side.role is Role.PREFILL else None
    class_of = shares.class_of if isinstance(shares, Shares) else {}
    considered = []
    for row, score in zip(side.rows.tolist(), side.scores.tolist(), strict=True):
        member_id = columns.fixed.ids[row]
        considered.append(
            ConsideredMember(
                member_id=member_id,
                role=side.role,
                is_chosen=row == side.chosen,
                age_s=record.decided_at - float(columns.seen_at[row]),
                outstanding_requests=int(columns.requests[row]),
                outstanding_tokens=int(columns.tokens[row]),
                outstanding_quota_s=float(columns.quota_s[row]),
                score=tuple(zip(side.names, score, strict=True)),
                length_class=class_of.get(member_id),
            )
        )
    considered.sort(key=lambda member: (not member.is_chosen, [value for _, value in member.score]))
    other = side.runner_up()
    return SideExplanation(
        role=side.role,
        chosen_id=side.chosen_id,
        considered=tuple(considered),
        excluded=side.exclusions(),
        runner_up_id=columns.fixed.ids[other] if other >= 0 else "",
        margin=side.margin(),
        ties=side.ties,
    )
