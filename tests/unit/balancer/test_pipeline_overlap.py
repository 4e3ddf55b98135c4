"""Decode reads ahead while prefill computes: that saves time, and no failure of it costs more."""

from __future__ import annotations

import asyncio

import pytest

from balancer.config import HandoffSettings
from runtime.errors import (
    Conflict,
    Corrupt,
    InvalidRequest,
    NotFound,
    Reason,
    TooLate,
    Unavailable,
)
from tests.fakes.front_door import PROMPT, front_door, tokens_of
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
ON = {"handoff": {"overlap": True}}
QUICK = {"limits": {"suspect_s": 0.05, "recovery_wait_s": 0.5}}


async def test_decode_is_told_what_prefill_reports() -> None:
    async with front_door(**ON) as door:
        door.prefills[0].scripts.append(Script(stored=3))
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[-1].final.timing.prefetched_bytes == 40
        [(begin, *counts)] = door.decodes[0].prefetches
        assert list(begin.begin.token_ids) == list(door.decodes[0].calls[0].token_ids)
        assert begin.begin.credit_id == door.decodes[0].calls[0].credit_id
        assert (begin.begin.request_id, begin.begin.attempt) == ("r1", 1)
        assert counts[-1].stored.num_blocks == 3
        await door.settle()


async def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    async with front_door(**ON) as door:
        assert tokens_of(await door.generate()) == answer(PROMPT, 6)
        assert door.prefills[0].calls[0].report_stored
        assert door.decodes[0].prefetches == []
        await door.settle()


async def test_it_can_be_switched_off() -> None:
    async with front_door(handoff={"overlap": False}) as door:
        door.prefills[0].scripts.append(Script(stored=3))
        assert tokens_of(await door.generate()) == answer(PROMPT, 6)
        assert not door.prefills[0].calls[0].report_stored
        assert door.decodes[0].prefetches == []


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (InvalidRequest("no credit"), "bad_request"),
        (Unavailable("going"), "peer_gone"),
        (TooLate("late"), "deadline"),
    ],
)
async def test_a_prefetch_that_fails_is_counted_and_costs_nothing(
    error: Exception, label: str
) -> None:
    async with front_door(**ON) as door:
        door.prefills[0].scripts.append(Script(stored=3))
        door.decodes[0].prefetch_error = error  # type: ignore[assignment]
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[-1].attempt == 1
        await door.settle()
        assert door.metric("disagg_prefetch_total", outcome=label) == 1


async def test_a_prefetch_that_its_sequence_overtook_is_no_failure() -> None:
    async with front_door(**ON) as door:
        door.prefills[0].scripts.append(Script(stored=3))
        door.decodes[0].prefetch_error = Conflict("taken", reason=Reason.LEASE_LOST)
        assert tokens_of(await door.generate()) == answer(PROMPT, 6)
        await door.settle()
        assert len(door.decodes[0].prefetches) == 1
        assert door.metric("disagg_prefetch_total") == 0


@pytest.mark.parametrize(
    "script",
    [
        Script(stored=2),
        Script(stored=2, after_tokens=1, error=NotFound("gone", reason=Reason.BLOCK_EVICTED)),
    ],
    ids=["before the ticket", "the commit misses it"],
)
async def test_a_damaged_block_costs_one_attempt_that_trusts_nothing(script: Script) -> None:
    async with front_door(**ON, **QUICK) as door:
        member = door.decodes[0]
        member.prefetch_error = Corrupt("bad digest")
        script.before = None
        door.prefills[0].scripts.append(script)
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        found = [call.bypass_prefix for call in door.prefills[0].calls]
        if len(found) > 1:  # the news may come after the last moment at which it matters
            assert found == [False, True]
            assert door.metric("disagg_redispatch_total", stage="decode", reason="corrupt") == 1
        assert script.error is None or len(found) == 2
        await door.settle()


async def test_each_attempt_has_a_prefetch_of_its_own_and_leaves_none() -> None:
    async with front_door(**ON, **QUICK) as door:
        door.prefills[0].scripts.extend([Script(stored=2), Script(stored=2)])
        door.decodes[0].scripts.append(Script(error=Unavailable("gone"), after_tokens=2))
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        begins = [said[0].begin for said in door.decodes[0].prefetches]
        assert [begin.attempt for begin in begins] == [1, 2]
        assert list(begins[1].token_ids) == PROMPT + answer(PROMPT, 3)
        await door.settle()


@pytest.mark.parametrize("how", ["caller", "deadline", "prefill fails", "stop text"])
async def test_a_request_that_ends_early_ends_its_prefetch(how: str) -> None:
    async with front_door(**ON, limits={"prefill_retries": 0}) as door:
        script = Script(stored=2, hang=True, after_tokens=1)
        sampling: dict[str, object] = {"max_tokens": 6}
        if how == "prefill fails":
            script = Script(stored=2, error=InvalidRequest("no"), after_tokens=1)
        elif how == "stop text":
            sampling["stop"] = [chr(answer(PROMPT, 1)[0])]
            script = Script(stored=2)
        door.prefills[0].scripts.append(script)
        call = door.call(timeout=0.5 if how == "deadline" else 20.0, sampling=sampling)
        if how == "caller":
            await door.prefills[0].reached.wait()
            await door.until(lambda: bool(door.decodes[0].prefetches))
            call.cancel()
        await asyncio.gather(_read(call), return_exceptions=True)
        await door.settle()
        assert door.decodes[0].calls == [] or how == "stop text"


async def _read(call: object) -> list[object]:
    return [message async for message in call]  # type: ignore[attr-defined]


def test_the_default_is_the_setting_that_was_measured() -> None:
    assert HandoffSettings().overlap is True
