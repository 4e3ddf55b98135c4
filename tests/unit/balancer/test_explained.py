"""`Explain` over gRPC: every decision, decided again, and searched where it placed something."""

from __future__ import annotations

import grpc.aio
import pytest

from balancer.explained import ROLE_VALUES
from balancer.membership.members import Role
from disagg.v1 import membership_pb2, routing_pb2, routing_pb2_grpc
from runtime.errors import Unavailable
from tests.fakes.front_door import FrontDoor, front_door
from tests.fakes.members import Script

pytestmark = pytest.mark.medium


async def ask(door: FrontDoor, name: str, *, what_if: bool = False) -> list[routing_pb2.Decision]:
    stub = routing_pb2_grpc.RoutingServiceStub(door.channel)
    request = routing_pb2.ExplainRequest(request_id=name, what_if=what_if)
    return list((await stub.Explain(request, timeout=10)).decisions)


async def test_each_attempt_has_its_decision() -> None:
    async with front_door(decodes=2, limits={"suspect_s": 5.0}) as door:
        door.decodes[0].scripts.append(Script(error=Unavailable("gone")))
        await door.generate()
        first, second = await ask(door, "r1", what_if=True)
        assert (first.attempt, second.attempt) == (1, 2)
        assert first.is_reproduced
        assert second.is_reproduced
        assert (first.decode.chosen_id, second.decode.chosen_id) == ("d0", "d1")
        assert first.decode.runner_up_id == "d1"
        assert [item.cause for item in second.decode.excluded] == ["suspect"]
        assert first.has_changes
        assert {change.role for change in first.changes} == {membership_pb2.MEMBER_ROLE_DECODE}
        assert 0 <= second.age_s <= first.age_s < 60
        [p0] = first.prefill.considered
        assert [term.name for term in p0.score] == ["wait_s", "tokens"]


async def test_only_what_was_asked_for_is_searched() -> None:
    async with front_door() as door:
        await door.generate()
        [decision] = await ask(door, "r1")
        assert not decision.has_changes
        assert await ask(door, "another") == []
        with pytest.raises(grpc.aio.AioRpcError, match="request_id: empty"):
            await ask(door, "")


def test_every_role_has_a_value() -> None:
    assert ROLE_VALUES.keys() == set(Role)
