"""Why a request ran where it ran, as plain values; see `disagg.v1.Decision` for every field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from disagg.v1 import membership_pb2, routing_pb2

_ROLES = {
    membership_pb2.MEMBER_ROLE_PREFILL: "prefill",
    membership_pb2.MEMBER_ROLE_DECODE: "decode",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A member that could have been chosen, as it was known.

    Attributes:
        score: Terms, most important first; lower is better.
        length_class: Class whose engine it is; None: any, or a policy without classes.
    """

    member_id: str
    is_chosen: bool
    age_s: float
    outstanding_requests: int
    outstanding_tokens: int
    outstanding_quota_s: float
    score: Mapping[str, float]
    length_class: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The members of one role in a decision.

    Attributes:
        chosen_id: Empty if nobody was chosen.
        excluded: Members that could not be chosen, and why.
        margin: By how much the winner leads in `margin_name`, the first score that differs.
    """

    chosen_id: str
    candidates: tuple[Candidate, ...]
    excluded: Mapping[str, str]
    runner_up_id: str
    margin_name: str
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The smallest change of one input that would have changed the choice.

    Attributes:
        chosen_id: Who would have been chosen; empty: there would have been no pair.
    """

    role: str
    member_id: str
    input: str
    before: float
    after: float
    chosen_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision on a request.

    Attributes:
        verdict: place, hold, reject or no pair.
        quota_s: Predicted prefill seconds.
        class_name: Name of the length class, such as `16K-64K`; empty from older balancers.
        is_reproduced: The record alone, decided again, gave the same answer.
        changes: Smallest first; None if they were not searched for.
    """

    attempt: int
    age_s: float
    policy: str
    policy_version: int
    verdict: str
    reason: str
    num_tokens: int
    cached_tokens: int
    length_class: int
    class_name: str
    quota_s: float
    output_tokens: int
    prefill: Side
    decode: Side
    is_reproduced: bool
    changes: tuple[Change, ...] | None


def decisions_of(messages: Iterable[routing_pb2.Decision]) -> tuple[Decision, ...]:
    """Decisions on the wire as values."""
    return tuple(map(_decision, messages))


def _decision(message: routing_pb2.Decision) -> Decision:
    names, number = message.class_names, message.length_class
    changes = tuple(
        Change(
            role=_ROLES.get(change.role, ""),
            member_id=change.member_id,
            input=change.input,
            before=change.before,
            after=change.after,
            chosen_id=change.chosen_id,
        )
        for change in message.changes
    )
    return Decision(
        attempt=message.attempt,
        age_s=message.age_s,
        policy=message.policy,
        policy_version=message.policy_version,
        verdict=message.verdict,
        reason=message.reason,
        num_tokens=message.num_tokens,
        cached_tokens=message.cached_tokens,
        length_class=message.length_class,
        class_name=names[number] if number < len(names) else "",
        quota_s=message.quota_s,
        output_tokens=message.output_tokens,
        prefill=_side(message.prefill),
        decode=_side(message.decode),
        is_reproduced=message.is_reproduced,
        changes=changes if message.has_changes else None,
    )


def _side(message: routing_pb2.DecisionSide) -> Side:
    return Side(
        chosen_id=message.chosen_id,
        candidates=tuple(
            Candidate(
                member_id=item.member_id,
                is_chosen=item.is_chosen,
                age_s=item.age_s,
                outstanding_requests=item.outstanding_requests,
                outstanding_tokens=item.outstanding_tokens,
                outstanding_quota_s=item.outstanding_quota_s,
                score={term.name: term.value for term in item.score},
                length_class=item.length_class if item.HasField("length_class") else None,
            )
            for item in message.considered
        ),
        excluded={
            item.member_id: f"{item.cause} ({item.detail})" if item.detail else item.cause
            for item in message.excluded
        },
        runner_up_id=message.runner_up_id,
        margin_name=message.margin_name,
        margin=message.margin,
    )
