"""What follows a failed attempt, against scripted members: the same answer, or a clear end."""

from __future__ import annotations

import asyncio

import pytest

from runtime.errors import (
    AlreadyRunning,
    CallerLeft,
    Conflict,
    Corrupt,
    Mismatch,
    NotFound,
    Overloaded,
    Reason,
    Unavailable,
)
from tests.fakes.front_door import PROMPT, front_door, tokens_of
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
QUICK = {"limits": {"suspect_s": 0.05, "recovery_wait_s": 0.5}}


@pytest.mark.parametrize("sent", range(6))
async def test_a_decode_that_dies_after_any_token_is_replaced(sent: int) -> None:
    async with front_door(decodes=2, **QUICK) as door:
        script = Script(error=Unavailable("gone"), after_tokens=sent)
        for decode in door.decodes:
            decode.scripts.append(script)  # whichever is chosen first fails; the other behaves
            script = Script()
        door.decodes[1].scripts.clear()
        messages = await door.generate(sampling={"max_tokens": 8})
        assert tokens_of(messages) == answer(PROMPT, 8)
        assert messages[-1].attempt == 2
        assert door.metric("disagg_redispatch_total", stage="decode", reason="peer_gone") == 1
        # The hand-off of the first attempt is dropped, the second attempt goes on behind it.
        second = door.prefills[0].calls[1]
        assert second.attempt == 2
        assert second.num_generated == 1 + sent
        assert list(second.token_ids) == PROMPT + answer(PROMPT, 1 + sent)
        await door.settle()
        assert door.store.aborted == ["h-r1-1"]


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        (Script(error=Corrupt("bad digest")), "corrupt"),
        (Script(error=NotFound("evicted", reason=Reason.BLOCK_EVICTED)), "evicted"),
        (Script(error=Conflict("lapsed", reason=Reason.LEASE_LOST)), "lease_lost"),
        (Script(error=Conflict("older", reason=Reason.STALE_ATTEMPT)), "stale_attempt"),
        (Script(error=Unavailable("no", reason=Reason.STORE_DOWN)), "store_down"),
        (Script(error=Unavailable("no", reason=Reason.DRAINING)), "draining"),
        (Script(error=Overloaded("no", reason=Reason.POOL_FULL)), "overload"),
        (Script(error=Mismatch("differs", reason=Reason.KV_LAYOUT_DIFFERS)), "layout"),
        (Script(end=True, after_tokens=2), "interrupted"),
        (Script(end=True, after_tokens=0), "interrupted"),
        (Script(skip=3), "broken_stream"),
        (Script(error=CallerLeft("shutting down"), after_tokens=1), "peer_gone"),
    ],
)
async def test_failures_of_decode_are_recomputed_once_and_counted(
    script: Script, cause: str
) -> None:
    async with front_door(**QUICK) as door:
        door.decodes[0].scripts.append(script)
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[-1].attempt == 2
        assert door.metric("disagg_redispatch_total", stage="decode", reason=cause) == 1
        calls = door.prefills[0].calls
        assert [call.bypass_prefix for call in calls] == [False, cause == "corrupt"]
        assert [call.attempt for call in calls] == [1, 2]
        await door.settle()


@pytest.mark.parametrize(
    "script",
    [
        Script(error=Unavailable("gone")),
        Script(error=Unavailable("gone"), after_tokens=1),
        Script(end=True, after_tokens=1),
        Script(error=Overloaded("no", reason=Reason.QUEUE_FULL)),
    ],
)
async def test_failures_of_prefill_are_repeated(script: Script) -> None:
    async with front_door(prefills=2, **QUICK) as door:
        for prefill in door.prefills:
            prefill.scripts.append(script)
        door.prefills[1].scripts.clear()
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[-1].attempt == (2 if door.prefills[0].calls else 1)
        await door.settle()


async def test_an_id_that_was_used_before_takes_over_at_once() -> None:
    async with front_door(limits={"prefill_retries": 0, "decode_retries": 0}) as door:
        stale = Conflict(
            "4 is newer", reason=Reason.STALE_ATTEMPT, metadata={"newest_attempt": "4"}
        )
        door.prefills[0].scripts.append(Script(error=stale))
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert [call.attempt for call in door.prefills[0].calls] == [1, 5]
        assert messages[-1].attempt == 5


def _stale(newest: int) -> Script:
    error = Conflict(
        f"{newest} is newer", reason=Reason.STALE_ATTEMPT, metadata={"newest_attempt": str(newest)}
    )
    return Script(error=error, after_tokens=1)


async def test_a_running_request_goes_on_above_the_newest_attempt() -> None:
    async with front_door(**QUICK) as door:
        door.decodes[0].scripts += [_stale(2), _stale(7)]
        messages = await door.generate(sampling={"max_tokens": 9})
        assert tokens_of(messages) == answer(PROMPT, 9)
        assert [call.attempt for call in door.prefills[0].calls] == [1, 3, 8]
        assert door.metric("disagg_redispatch_total", stage="decode", reason="stale_attempt") == 2
        await door.settle()


async def test_a_request_that_is_always_overtaken_ends_with_the_way_out() -> None:
    async with front_door(**QUICK) as door:
        door.decodes[0].scripts.extend(_stale(10 * number) for number in range(1, 9))
        error = await door.generate(sampling={"max_tokens": 20})
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.STREAM_INTERRUPTED
        assert error.metadata["last_seq"] == "8"
        await door.settle()
        door.prefills[0].scripts.extend(
            Script(error=_stale(10 * number).error) for number in range(10, 19)
        )
        error = await door.generate("r2")
        assert isinstance(error, AlreadyRunning)
        assert error.reason is Reason.DUPLICATE_REQUEST
        assert "choose another id" in error.message


async def test_a_store_that_is_away_for_a_while_costs_no_request() -> None:
    async with front_door(limits={"recovery_wait_s": 10.0, "retries_per_minute": 0}) as door:
        down = Script(error=Unavailable("no", reason=Reason.STORE_DOWN))
        door.prefills[0].scripts.extend([down] * 3)
        door.decodes[0].scripts.extend([down] * 3)
        messages = await door.generate()
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert len(door.prefills[0].calls) == 7


async def test_a_store_that_stays_away_ends_the_wait() -> None:
    async with front_door(limits={"recovery_wait_s": 0.3}) as door:
        down = Script(error=Unavailable("no", reason=Reason.STORE_DOWN))
        door.prefills[0].scripts.extend([down] * 99)
        error = await door.generate()
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.STORE_DOWN
        assert 3 <= len(door.prefills[0].calls) <= 12  # it waits longer and longer


async def test_the_only_decode_may_be_away_for_a_while() -> None:
    limits = {"suspect_s": 0.05, "recovery_wait_s": 10.0, "retries_per_minute": 3}
    async with front_door(limits=limits) as door:
        door.decodes[0].scripts.extend([Script(error=Unavailable("gone"))] * 3)
        door.decodes[0].refusals.extend([Unavailable("refused")] * 6)
        reading = [asyncio.create_task(door.generate(f"r{number}")) for number in range(3)]
        for messages in await asyncio.gather(*reading):
            assert tokens_of(messages) == answer(PROMPT, 6)


async def test_a_member_that_vanished_is_left_alone_for_a_while() -> None:
    async with front_door(decodes=2) as door:
        await door.decodes[0].stop()
        for number in range(4):
            messages = await door.generate(f"r{number}")
            assert tokens_of(messages) == answer(PROMPT, 6)
        assert door.metric("disagg_redispatch_total", stage="reserve", reason="peer_gone") == 1


async def test_repetitions_are_bounded_and_the_stream_says_how_to_resume() -> None:
    async with front_door(**QUICK) as door:
        door.decodes[0].scripts.extend(
            Script(error=Unavailable("gone"), after_tokens=1) for _ in range(9)
        )
        error = await door.generate(sampling={"max_tokens": 20})
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.STREAM_INTERRUPTED
        assert len(door.decodes[0].calls) == 3
        assert error.metadata["last_seq"] == "6"
        assert "last_seq=6" in error.message
        await door.settle()
        assert door.store.aborted == ["h-r1-1", "h-r1-2", "h-r1-3"]


async def test_a_continuation_without_members_is_an_interrupted_stream() -> None:
    async with front_door(limits={"suspect_s": 60.0, "recovery_wait_s": 0.0}) as door:
        door.decodes[0].scripts.append(Script(error=Unavailable("gone"), after_tokens=2))
        error = await door.generate()
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.STREAM_INTERRUPTED
        assert error.metadata["cause"] == "NO_DECODE"
        assert error.metadata["last_seq"] == "3"
        assert "no decode member is ready" in error.message
        assert door.metric("disagg_requests_total", outcome="failed") == 1
        await door.settle()


async def test_an_interrupted_stream_is_resumed_without_repeating_a_token() -> None:
    async with front_door(limits={"decode_retries": 0, "suspect_s": 0.05}) as door:
        door.decodes[0].scripts.append(Script(error=Unavailable("gone"), after_tokens=2))
        error = await door.generate()
        assert error.reason is Reason.STREAM_INTERRUPTED
        messages = await door.generate(last_seq=3)
        assert tokens_of(messages) == answer(PROMPT, 6)[3:]
        assert messages[0].seq == 4
        assert messages[-1].final.usage.completion_tokens == 6
        assert "".join(m.text for m in messages) == door.balancer.codec.decode(
            answer(PROMPT, 6)[3:]
        )


async def test_corruption_that_stays_is_an_error_not_an_answer() -> None:
    async with front_door() as door:
        door.decodes[0].scripts.extend(Script(error=Corrupt("bad digest")) for _ in range(9))
        door.prefills[0].scripts.extend(
            Script(error=Corrupt("bad digest"), after_tokens=0) for _ in range(9)
        )
        error = await door.generate()
        assert isinstance(error, Corrupt)
        assert error.reason is Reason.CHECKSUM_DIFFERS
        await door.settle()
