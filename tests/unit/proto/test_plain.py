"""Messages as plain values: names of fields, absent as null, roles as words."""

from __future__ import annotations

import json

from disagg.plain import plain
from disagg.v1 import membership_pb2, routing_pb2


def test_a_decision_is_json() -> None:
    decision = routing_pb2.Decision(
        attempt=2,
        prefill=routing_pb2.DecisionSide(
            considered=[
                routing_pb2.ConsideredMember(member_id="p0", is_chosen=True),
                routing_pb2.ConsideredMember(member_id="p1", length_class=0),
            ]
        ),
        changes=[routing_pb2.DecisionChange(role=membership_pb2.MEMBER_ROLE_DECODE, after=2.0)],
    )
    told = json.loads(json.dumps(plain(decision)))
    assert set(told) == {field.name for field in routing_pb2.Decision.DESCRIPTOR.fields}
    first, second = told["prefill"]["considered"]
    assert (first["length_class"], second["length_class"]) == (None, 0)
    assert told["changes"][0]["role"] == "decode"
    assert told["decode"]["considered"] == []
