"""The journey against scripted members over real gRPC: every disturbance, the same answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from balancer.journey.request import seed_of
from disagg.v1 import common_pb2, generation_pb2
from runtime.errors import (
    AlreadyRunning,
    Mismatch,
    Overloaded,
    Reason,
    TooLate,
    Unavailable,
)
from tests.fakes.front_door import PROMPT, front_door, tokens_of
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium


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


@pytest.mark.parametrize("stage", ["prefill", "before_ticket", "decode", "decoding"])
@pytest.mark.parametrize("how", ["caller", "operator", "deadline"])
async def test_leaving_at_any_stage_frees_everything(stage: str, how: str) -> None:
    async with front_door() as door:
        member = (door.prefills if "decod" not in stage else door.decodes)[0]
        after = {"prefill": 0, "before_ticket": 1, "decode": 0, "decoding": 2}[stage]
        member.scripts.append(Script(hang=True, after_tokens=after))
        call = door.call(timeout=0.4 if how == "deadline" else 20.0)
        messages: list[Any] = []
        reading = asyncio.gather(_read(call, messages), return_exceptions=True)
        await member.reached.wait()
        if how == "caller":
            call.cancel()
            [outcome] = await reading
            assert isinstance(outcome, asyncio.CancelledError)
        elif how == "operator":
            expected = {"prefill": 0, "before_ticket": 1, "decode": 1, "decoding": 3}[stage]
            # The member has sent them; they are on their way through the balancer.
            await door.until(lambda: sum(len(item.token_ids) for item in messages) == expected)
            cancel = generation_pb2.CancelRequestRequest(request_id="r1")
            assert (await door.stub.CancelRequest(cancel, timeout=5)).found
            [outcome] = await reading
            assert tokens_of(outcome) == answer(PROMPT, expected)
            assert outcome[-1].final.finish_reason == common_pb2.FINISH_REASON_ABORT
        else:
            [outcome] = await reading
            assert outcome.code().name == "DEADLINE_EXCEEDED"
        await door.settle()
        # Only what we were late with is held against us.
        ends = {"caller": ("abort", "CALLER_LEFT"), "operator": ("abort", "")}
        end = ends.get(how, ("failed", "DEADLINE"))
        assert door.metric("disagg_requests_total", outcome=end[0], reason=end[1]) == 1
        assert door.metric("disagg_requests_total") == 1
        assert door.metric("disagg_slo_requests_total") == (how == "deadline")
        assert member.cancelled == 1
        # Decode had taken the slot: nobody asks for it back.
        assert door.decodes[0].releases == (0 if stage == "decoding" else 1)
        assert door.store.aborted == (["h-r1-1"] if "decod" in stage else [])
        # A prefill may commit in the moment in which nobody reads any more.
        searched = [] if "decod" in stage else [("r1", 1)]
        assert [found[1:] for found in door.store.searched] == searched
        # The id is free again, and the members serve.
        assert tokens_of(await door.generate("r1")) == answer(PROMPT, 6)


async def _read(call: Any, messages: list[Any]) -> list[Any]:
    async for message in call:
        messages.append(message)
    return messages


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
        assert door.metric("disagg_cancellations_total", origin="deadline") == 1
        assert door.metric("disagg_cancellations_total", origin="client") == 0
        assert door.metric("disagg_slo_requests_total", verdict="failed") == 1


async def test_a_running_id_is_refused_and_the_running_request_goes_on() -> None:
    async with front_door() as door:
        resume = asyncio.Event()
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=2))
        call = door.call("same")
        reading = asyncio.gather(_read(call, []), return_exceptions=True)
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
        reading = asyncio.gather(_read(first, []), return_exceptions=True)
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


async def test_what_the_end_of_the_process_breaks_off_is_not_its_callers_doing() -> None:
    async with front_door() as door:
        door.decodes[0].scripts.append(Script(hang=True))
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(door.generate())
            await door.until(lambda: bool(door.decodes[0].calls))
            await door.balancer.host.stop(0)
        assert isinstance(asked.result(), Unavailable)
        await door.settle()
        assert door.metric("disagg_cancellations_total", origin="drain") == 1
        assert door.metric("disagg_cancellations_total", origin="client") == 0
