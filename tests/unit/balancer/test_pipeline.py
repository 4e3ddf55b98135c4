"""The journey against scripted members over real gRPC: every disturbance, the same answer."""

from __future__ import annotations

import asyncio

import pytest

from balancer.journey.request import seed_of
from disagg.v1 import common_pb2, generation_pb2
from runtime.errors import (
    AlreadyRunning,
    CallerLeft,
    Conflict,
    Corrupt,
    Mismatch,
    NotFound,
    Overloaded,
    Reason,
    TooLate,
    Unavailable,
)
from tests.fakes.front_door import PROMPT, front_door, tokens_of
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
QUICK = {"limits": {"suspect_s": 0.05, "recovery_wait_s": 0.5}}


async def test_a_request_walks_the_whole_line() -> None:
    async with front_door() as door:
        messages = await door.generate(sampling={"max_tokens": 6, "logprobs": 0})
        assert tokens_of(messages) == answer(PROMPT, 6)
        assert messages[0].seq == 1  # the first token does not wait for the hand-off
        assert messages[0].seed == seed_of("r1")
        assert not any(message.HasField("seed") for message in messages[1:])
        assert [entry.logprob for m in messages for entry in m.logprobs] == [-1, -2, -3, -4, -5, -6]
        final = messages[-1].final
        assert final.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert final.usage == common_pb2.Usage(
            prompt_tokens=4, completion_tokens=6, cached_tokens=2
        )
        timing = final.timing
        assert (timing.prefill_member, timing.decode_member) == ("p0", "d0")
        assert (timing.prefill_queue_us, timing.prefill_us, timing.commit_us) == (5, 7, 9)
        assert (timing.prefix_bytes, timing.published_bytes, timing.fetched_bytes) == (20, 100, 100)
        assert 0 < timing.first_token_us <= timing.total_us
        decode = door.decodes[0].calls[0]
        assert list(decode.token_ids) == PROMPT  # what the ticket covers; it names the first token
        assert decode.num_generated == 0
        assert decode.ticket.handoff_id == "h-r1-1"
        assert decode.credit_id
        assert door.store.aborted == []
        assert door.prefills[0].cancelled == 0  # it ended by itself, its hand-off stands
        await door.settle()


async def test_text_is_the_decoded_tokens() -> None:
    async with front_door() as door:
        messages = await door.generate(text="ROMEO:\n")
        prompt = list(door.prefills[0].calls[0].token_ids)
        assert prompt == [0, 1582, 32, 205]  # begin of sentence once, in front
        joined = "".join(message.text for message in messages)
        assert joined == door.balancer.codec.decode(answer(prompt, 6))
        assert joined


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


@pytest.mark.parametrize("stage", ["prefill", "before_ticket", "decode", "decoding"])
@pytest.mark.parametrize("how", ["caller", "operator", "deadline"])
async def test_leaving_at_any_stage_frees_everything(stage: str, how: str) -> None:
    async with front_door() as door:
        member = (door.prefills if "decod" not in stage else door.decodes)[0]
        after = {"prefill": 0, "before_ticket": 1, "decode": 0, "decoding": 2}[stage]
        member.scripts.append(Script(hang=True, after_tokens=after))
        call = door.call(timeout=0.4 if how == "deadline" else 20.0)
        reading = asyncio.gather(_read(call), return_exceptions=True)
        await member.reached.wait()
        if how == "caller":
            call.cancel()
            [outcome] = await reading
            assert isinstance(outcome, asyncio.CancelledError)
        elif how == "operator":
            cancel = generation_pb2.CancelRequestRequest(request_id="r1")
            assert (await door.stub.CancelRequest(cancel, timeout=5)).found
            [outcome] = await reading
            expected = {"prefill": 0, "before_ticket": 1, "decode": 1, "decoding": 3}[stage]
            assert tokens_of(outcome) == answer(PROMPT, expected)
            assert outcome[-1].final.finish_reason == common_pb2.FINISH_REASON_ABORT
        else:
            [outcome] = await reading
            assert outcome.code().name == "DEADLINE_EXCEEDED"
        await door.settle()
        assert member.cancelled == 1
        assert door.store.aborted == (["h-r1-1"] if "decod" in stage else [])
        # A prefill may commit in the moment in which nobody reads any more.
        searched = [] if "decod" in stage else [("r1", 1)]
        assert [found[1:] for found in door.store.searched] == searched
        # The id is free again, and the members serve.
        assert tokens_of(await door.generate("r1")) == answer(PROMPT, 6)


async def _read(call: object) -> list[object]:
    return [message async for message in call]  # type: ignore[attr-defined]


async def test_cancelling_an_unknown_request_finds_nothing() -> None:
    async with front_door() as door:
        cancel = generation_pb2.CancelRequestRequest(request_id="nobody")
        assert not (await door.stub.CancelRequest(cancel, timeout=5)).found


async def test_a_deadline_is_the_balancers_own_too() -> None:
    async with front_door(limits={"max_timeout_s": 0.2, "default_timeout_s": 0.2}) as door:
        door.decodes[0].scripts.append(Script(hang=True))
        error = await door.generate(timeout=20.0)
        assert isinstance(error, TooLate)
        assert error.reason is Reason.DEADLINE
        assert "0.2 s" in error.message
        await door.settle()


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


async def test_a_running_id_is_refused_and_the_running_request_goes_on() -> None:
    async with front_door() as door:
        resume = asyncio.Event()
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=2))
        call = door.call("same")
        reading = asyncio.gather(_read(call), return_exceptions=True)
        await door.decodes[0].reached.wait()
        error = await door.generate("same")
        assert isinstance(error, AlreadyRunning)
        assert error.reason is Reason.DUPLICATE_REQUEST
        assert "'same' is running" in error.message
        assert not resume.is_set()
        assert len(door.balancer.running) == 1
        call.cancel()
        await reading
        await door.settle()


async def test_one_request_too_many_is_refused_with_a_hint() -> None:
    async with front_door(admission={"max_running": 1, "max_waiting": 1}) as door:
        door.decodes[0].scripts.append(Script(hang=True))
        first = door.call("first")
        reading = asyncio.gather(_read(first), return_exceptions=True)
        await door.decodes[0].reached.wait()
        waiting = asyncio.gather(door.generate("second"))
        await door.until(lambda: door.balancer.admission.statistics().waiting == 1)
        error = await door.generate("third")
        assert isinstance(error, Overloaded)
        assert error.reason is Reason.QUEUE_FULL
        assert error.retry_after_s is not None
        assert error.retry_after_s > 0
        first.cancel()
        await reading
        [messages] = await waiting  # the queue moves on
        assert tokens_of(messages) == answer(PROMPT, 6)
        await door.settle()


async def test_full_decode_members_are_waited_for() -> None:
    async with front_door(decodes=2) as door:
        for decode in door.decodes:
            decode.capacity = 1
        results = await asyncio.gather(*(door.generate(f"r{number}") for number in range(8)))
        for messages in results:
            assert tokens_of(messages) == answer(PROMPT, 6)
        await door.settle()


async def test_decode_that_stays_full_is_an_overload() -> None:
    async with front_door(limits={"slot_wait_s": 0.0}) as door:
        door.decodes[0].capacity = 0
        error = await door.generate()
        assert isinstance(error, Overloaded)
        assert error.reason is Reason.POOL_FULL
        assert door.prefills[0].calls == []  # no slot, no prefill
        await door.settle()


@pytest.mark.parametrize(
    ("prefills", "decodes", "reason"),
    [(0, 0, Reason.NO_PREFILL), (0, 1, Reason.NO_PREFILL), (1, 0, Reason.NO_DECODE)],
)
async def test_missing_members_are_named(prefills: int, decodes: int, reason: Reason) -> None:
    async with front_door(prefills=prefills, decodes=decodes) as door:
        error = await door.generate()
        assert isinstance(error, Unavailable)
        assert error.reason is reason


async def test_layouts_that_differ_are_refused_as_a_pair() -> None:
    async with front_door(announce=False) as door:
        door.decodes[0].fingerprint = b"layout-2"
        for member in door.members:
            await member.announce(door.channel)
        error = await door.generate()
        assert isinstance(error, Mismatch)
        assert error.reason is Reason.KV_LAYOUT_DIFFERS
        assert b"layout-2".hex() in error.message


async def test_work_spreads_over_equal_members() -> None:
    async with front_door(prefills=2, decodes=4) as door:
        for number in range(8):
            await door.generate(f"r{number}")
        assert [len(member.calls) for member in door.prefills] == [4, 4]
        assert [len(member.calls) for member in door.decodes] == [2, 2, 2, 2]


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


async def test_seed_and_defaults_reach_both_legs() -> None:
    async with front_door() as door:
        await door.generate(sampling={})
        await door.generate("r2", sampling={"seed": 7, "max_tokens": 3, "temperature": 0.5})
        for calls in (door.prefills[0].calls, door.decodes[0].calls):
            assert calls[0].sampling.seed == seed_of("r1")
            assert calls[0].sampling.max_tokens == 64
            assert calls[0].sampling.temperature == 0
            assert (calls[1].sampling.seed, calls[1].sampling.max_tokens) == (7, 3)
            assert calls[1].sampling.temperature == 0.5
