"""A routed request names either its end or where it goes on."""

from __future__ import annotations

import pytest

from balancer.journey.handover import Routed
from balancer.journey.request import FinishReason, Timing, Usage
from disagg.v1 import generation_pb2
from tests.fakes.front_door import PROMPT, front_door

pytestmark = pytest.mark.medium


def test_it_is_a_plain_frozen_value() -> None:
    routed = Routed(
        attempt=1,
        seq=0,
        deltas=(),
        finish_reason=FinishReason.LENGTH,
        handover=None,
        usage=Usage(prompt_tokens=1, completion_tokens=0, cached_tokens=0),
        timing=Timing(),
    )
    with pytest.raises(AttributeError):
        routed.seq = 1  # type: ignore[misc]


@pytest.mark.parametrize("max_tokens", [1, 2])
async def test_one_of_the_two_is_there(max_tokens: int) -> None:
    async with front_door() as door:
        intake = door.balancer.intake
        message = generation_pb2.GenerateRequest(sampling={"max_tokens": max_tokens})
        request = intake.check(
            message, request_id="r", token_ids=PROMPT, arrived_at=intake.now(), timeout_s=None
        )
        routed = await door.balancer.pipeline.route(request)
        assert (routed.handover is None) == (routed.finish_reason is not None)
        if routed.handover is not None:
            await door.balancer.peers.release(
                routed.handover.pair.decode, routed.handover.pair.credit_id, timeout_s=5
            )
        await door.settle()
