"""Decisions as values: what is absent on the wire is None, names are joined to numbers."""

from __future__ import annotations

from client.decisions import decisions_of
from disagg.v1 import membership_pb2, routing_pb2


def test_a_decision_becomes_plain_values() -> None:
    message = routing_pb2.Decision(
        attempt=2,
        policy="deepseek",
        verdict="place",
        length_class=1,
        class_names=["<16K", ">=16K"],
        has_changes=True,
        prefill=routing_pb2.DecisionSide(
            chosen_id="p0",
            considered=[
                routing_pb2.ConsideredMember(
                    member_id="p0",
                    is_chosen=True,
                    length_class=0,
                    score=[routing_pb2.ScoreTerm(name="wait_s", value=0.5)],
                ),
                routing_pb2.ConsideredMember(member_id="p1"),
            ],
            excluded=[
                routing_pb2.ExcludedMember(member_id="p2", cause="stale", detail="9 s"),
                routing_pb2.ExcludedMember(member_id="p3", cause="draining"),
            ],
        ),
        changes=[
            routing_pb2.DecisionChange(
                role=membership_pb2.MEMBER_ROLE_PREFILL, member_id="p1", input="tokens", after=3
            )
        ],
    )
    (decision,) = decisions_of([message])
    assert (decision.attempt, decision.class_name) == (2, ">=16K")
    first, second = decision.prefill.candidates
    assert (first.length_class, first.score, second.length_class) == (0, {"wait_s": 0.5}, None)
    assert decision.prefill.excluded == {"p2": "stale (9 s)", "p3": "draining"}
    assert decision.changes is not None
    assert (decision.changes[0].role, decision.changes[0].after) == ("prefill", 3)
    (other,) = decisions_of([routing_pb2.Decision(length_class=5)])
    assert (other.class_name, other.changes) == ("", None)
