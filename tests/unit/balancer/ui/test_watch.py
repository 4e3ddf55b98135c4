"""A state is made once for many browsers, and says what happened."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from balancer.explained import explained
from balancer.routing.options import class_limits
from balancer.ui.watch import Watch
from disagg.plain import plain
from kvstore.pressure import Pressure
from tests.fakes.front_door import PROMPT, front_door

pytestmark = pytest.mark.medium


async def test_one_request_is_seen_from_all_sides() -> None:
    async with front_door(decodes=2) as door:
        await door.generate("r1")
        await door.settle()
        door.store.pressure = Pressure(used_share=0.25, handoff_share=0.125)
        await door.balancer.examine()
        state: Any = json.loads(await Watch(door.balancer, "7").state())
    assert state["about"]["version"] == "7"
    assert (state["requests"]["running"], state["requests"]["ended"]) == (0, 1)
    [trip] = state["trips"]
    assert (trip["request_id"], trip["outcome"], trip["prompt_tokens"]) == ("r1", "length", 4)
    assert trip["prefill"] == "p0"
    names = [state["phases"][number] for number, _, _ in trip["parts"]]
    assert names[-2:] == ["publish", "fetch"]
    assert sum(length for number, _, length in trip["parts"] if number < 3) <= trip["total_us"]
    [decision] = state["decisions"]
    assert decision["request_id"] == "r1"
    assert decision["decode"]["candidates"] == 2
    assert (state["store"]["used_share"], state["store"]["hit_share"]) == (0.25, 0.5)
    assert len(state["history"]["age_s"]) == 1
    assert state["decode"]["members"]["id"] == ["d0", "d1"]


async def test_failures_are_kept_with_their_cause() -> None:
    async with front_door(announce=False) as door:
        await door.generate("r1")
        state: Any = json.loads(await Watch(door.balancer, "7").state())
    assert state["health"]["why"] == "no prefill member has announced itself"
    [trip] = state["trips"]
    assert (trip["outcome"], trip["reason"]) == ("failed", "NO_PREFILL")
    assert {"what": "failed", "where": "", "cause": "NO_PREFILL", "count": 1} in state["failures"]


async def test_many_browsers_cost_what_one_costs() -> None:
    async with front_door() as door:
        watch, looks = Watch(door.balancer, "7"), 0
        ask = door.store.is_reachable

        async def counted() -> bool:
            nonlocal looks
            looks += 1
            return await ask()

        door.store.is_reachable = counted  # type: ignore[method-assign]
        answers = await asyncio.gather(*(watch.state() for _ in range(20)))
    assert len(set(answers)) == 1
    assert looks == 1


async def test_the_record_is_that_of_the_grpc_face() -> None:
    async with front_door() as door:
        await door.generate("r1", token_ids={"ids": PROMPT})
        told = json.loads(await Watch(door.balancer, "7").decisions("r1", what_if=True))
        response = await explained(
            door.balancer.router,
            "r1",
            what_if=True,
            now=door.balancer.clock.now(),
            class_names=class_limits(door.balancer.settings.routing.boundaries),
        )
    [same] = [plain(decision) for decision in response.decisions]
    [decision] = told["decisions"]
    assert decision.pop("age_s") <= same.pop("age_s")  # type: ignore[operator]
    assert decision == json.loads(json.dumps(same))
