"""One attempt against scripted members: what of its legs reaches the caller, and what ends it."""

from __future__ import annotations

import pytest

from disagg.v1 import common_pb2
from runtime.errors import (
    Reason,
    TooLate,
)
from tests.fakes.front_door import PROMPT, front_door, tokens_of
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
QUICK = {"limits": {"suspect_s": 0.05, "recovery_wait_s": 0.5}}


async def test_a_first_token_that_ends_the_generation_needs_no_decode() -> None:
    async with front_door() as door:
        door.prefills[0].scripts.append(Script(stop_at=1))
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 1)
        assert messages[-1].final.finish_reason == common_pb2.FINISH_REASON_STOP
        assert messages[-1].final.timing.published_bytes == 100  # its blocks are kept
        assert door.decodes[0].calls == []
        await door.settle()


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
async def test_few_tokens(max_tokens: int) -> None:
    async with front_door() as door:
        messages = await door.generate(sampling={"max_tokens": max_tokens})
        assert tokens_of(messages) == answer(PROMPT, max_tokens)
        final = messages[-1].final
        assert final.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert final.usage.prompt_tokens == 4
        assert messages[0].HasField("seed")
        assert len(door.prefills[0].calls) == min(1, max_tokens)
        assert len(door.decodes[0].calls) == (1 if max_tokens > 1 else 0)
        await door.settle()


async def test_tokens_that_come_twice_or_from_a_zombie_are_dropped() -> None:
    async with front_door(**QUICK) as door:
        door.decodes[0].scripts.append(Script(twice=True))
        assert tokens_of(await door.generate("r1")) == answer(PROMPT, 6)
        assert door.metric("disagg_dropped_tokens_total") == 4  # the last one ends the stream
        door.decodes[0].scripts.append(Script(stale_attempt=7))
        messages = await door.generate("r2")
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[-1].attempt == 2
        assert door.metric("disagg_dropped_tokens_total") == 9


async def test_a_late_first_token_is_final() -> None:
    async with front_door(limits={"first_token_s": 0.1}) as door:
        door.prefills[0].scripts.append(Script(hang=True))
        error = await door.generate()
        assert isinstance(error, TooLate)
        assert error.reason is Reason.FIRST_TOKEN_LATE
        assert len(door.prefills[0].calls) == 1
        await door.settle()


async def test_a_decode_that_falls_silent_is_given_up() -> None:
    async with front_door(limits={"progress_gap_s": 0.1, "suspect_s": 0.05}) as door:
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=2))
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[-1].attempt == 2
        assert door.decodes[0].cancelled == 1


async def test_stop_strings_end_the_answer_and_the_work() -> None:
    async with front_door() as door:
        whole = door.balancer.codec.decode(answer(PROMPT, 20))
        stop = whole[3:5]
        messages = await door.generate(sampling={"max_tokens": 20, "stop": [stop]})
        assert "".join(message.text for message in messages) == whole[: whole.find(stop)]
        assert messages[-1].final.finish_reason == common_pb2.FINISH_REASON_STOP
        ids = tokens_of(messages)
        assert ids == answer(PROMPT, len(ids))
        assert messages[-1].final.usage.completion_tokens == len(ids)
        await door.settle()
