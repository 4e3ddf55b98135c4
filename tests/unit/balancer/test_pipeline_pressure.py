"""A store under pressure: new requests are turned away at the door, running ones go on."""

from __future__ import annotations

import pytest

from disagg.v1 import common_pb2
from runtime.errors import Overloaded, Reason, Unavailable
from tests.fakes.front_door import PROMPT, front_door, tokens_of
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium


async def test_new_requests_are_refused_with_a_hint_and_counted() -> None:
    async with front_door() as door:
        door.store.refusal = "85% of the KV store's memory is used, the limit is 85%"
        error = await door.generate()
        assert isinstance(error, Overloaded)
        assert error.reason is Reason.POOL_FULL
        assert error.retry_after_s == 1.0
        assert "85% of the KV store's memory" in error.message
        assert door.metric("disagg_admission_rejections_total", reason="POOL_FULL") == 1
        assert door.metric("disagg_requests_total", outcome="failed", reason="POOL_FULL") == 1
        assert door.prefills[0].calls == []
        door.store.refusal = ""
        assert tokens_of(await door.generate()) == answer(PROMPT, 6)
        await door.settle()


async def test_a_request_that_was_admitted_goes_on_and_may_try_again() -> None:
    async with front_door(limits={"suspect_s": 0.05}) as door:
        member = door.decodes[0]

        def fill() -> None:
            door.store.refusal = "full"

        member.scripts.append(Script(error=Unavailable("gone"), after_tokens=1, before=fill))
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[-1].attempt == 2
        assert messages[-1].final.finish_reason == common_pb2.FINISH_REASON_LENGTH
        await door.settle()


async def test_the_store_is_looked_at_while_the_balancer_runs() -> None:
    async with front_door() as door:
        for _ in range(2):
            await door.balancer.examine()
        assert door.store.looks == 2
