"""A sequence's path: what it streams, what it refuses, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from decode_service.decode import Resumed, SequenceRequest, Tokens
from engine.request import InvalidRequest as EngineInvalid
from engine.request import SamplingError
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    LayoutDiffers,
    StaleAttempt,
    StoreDown,
    TicketInvalid,
)
from runtime.budget import BudgetFull
from runtime.errors import AlreadyRunning, Conflict, InvalidRequest, Mismatch, Overloaded, Reason
from tests.fakes.services import (
    BLOCK,
    Rig,
    cancel_when,
    outcome,
    prompt,
    run_decode,
    run_prefill,
    running_rig,
    tokens,
    until,
)
from tests.fakes.toy_runner import expected_tokens

PROMPT = tokens(37)
FINGERPRINT = bytes.fromhex("0123456789abcdef")


async def handed_over(
    rig: Rig, token_ids: Sequence[int] = PROMPT, **changes: object
) -> SequenceRequest:
    """A committed hand-off, ready to be decoded."""
    request = prompt(token_ids, **changes)
    _, ticket = outcome(await run_prefill(rig, request))
    assert ticket is not None
    return SequenceRequest(
        request_id=request.request_id,
        attempt=request.attempt,
        ticket=ticket,
        token_ids=request.token_ids,
        num_generated=request.num_generated,
        sampling=request.sampling,
    )


async def abandon(rig: Rig, request: SequenceRequest) -> None:
    rig.store.abort(request.ticket.handoff_id)
    await rig.assert_at_rest()


async def test_tokens_are_numbered_behind_the_first_and_the_lease_is_gone_before_they_come() -> (
    None
):
    async with running_rig() as rig:
        request = await handed_over(rig)
        events: list[Resumed | Tokens] = []

        async def emit(event: Resumed | Tokens) -> None:
            assert rig.store.audit() == []
            events.append(event)

        await rig.decode.run(request, emit)
        resumed, *rest = events
        assert isinstance(resumed, Resumed)
        assert resumed.num_bytes == 9 * 4 * BLOCK + 4 + 16
        found = [token for event in rest if isinstance(event, Tokens) for token in event.tokens]
        assert [token.number for token in found] == list(range(2, 9))
        assert [token.token_id for token in found] == expected_tokens(PROMPT, request.sampling)[1:]
        assert [token.finish_reason for token in found] == [None] * 6 + ["length"]
        await rig.assert_at_rest()
        assert rig.metrics.value("disagg_handoff_total", outcome="ok") == 1
        for phase in ("handoff_wait", "fetch", "decode_queue", "decode"):
            assert rig.metrics.value("disagg_phase_duration_seconds", phase=phase) == 1, phase
        sent = rig.metrics.value("disagg_stream_messages_total", role="decode")
        assert sent == len(events)


async def test_what_is_ready_travels_together() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig, max_tokens=60)
        sizes: list[int] = []

        async def emit(event: Resumed | Tokens) -> None:
            if isinstance(event, Tokens):
                sizes.append(len(event.tokens))
                if len(sizes) == 1:
                    # A slow caller: meanwhile the engine runs to the end.
                    await until(lambda: rig.decode_core.statistics().running == 0)

        await rig.decode.run(request, emit)
        assert sum(sizes) == 59
        assert len(sizes) == 2
        await rig.assert_at_rest()


async def test_logprobs_come_when_asked_for() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig, logprobs=2)
        events: list[Tokens] = []

        async def emit(event: Resumed | Tokens) -> None:
            if isinstance(event, Tokens):
                events.append(event)

        await rig.decode.run(request, emit)
        for token in (token for event in events for token in event.tokens):
            assert token.logprob is not None
            assert token.logprob <= 0.0
            assert len(token.top_logprobs) == 2
            assert token.top_logprobs[0] == (token.token_id, token.logprob)


async def test_many_sequences_at_once_equal_each_alone() -> None:
    async with running_rig(decode={"max_num_seqs": 3}) as rig:
        requests = [
            await handed_over(rig, tokens(5 + 4 * i, i), request_id=f"r-{i}") for i in range(8)
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run_decode(rig, request)) for request in requests]
        for request, task in zip(requests, tasks, strict=True):
            assert task.result() == expected_tokens(request.token_ids, request.sampling)[1:]
        await rig.assert_at_rest()


# Refusals


@dataclasses.dataclass(frozen=True)
class Refusal:
    changes: dict[str, object]
    message: str
    kind: type[Exception]


REFUSALS = {
    "bad id": Refusal({"request_id": "a/b"}, "request_id is 'a/b'", InvalidRequest),
    "attempt 0": Refusal({"attempt": 0}, "attempt is 0: attempts count from 1", InvalidRequest),
    "other request": Refusal({"request_id": "r-9"}, "ticket.request_id is 'r-1'", InvalidRequest),
    "older ticket": Refusal({"attempt": 2}, "the ticket is of attempt 1", Conflict),
    "no tokens": Refusal({"token_ids": ()}, "token_ids is empty", InvalidRequest),
    "a token short": Refusal(
        {"token_ids": PROMPT[:-1]}, "36 token_ids came, but the ticket covers 37", InvalidRequest
    ),
    "all generated": Refusal({"num_generated": 37}, "num_generated is 37 of 37", InvalidRequest),
    "nothing left": Refusal({"sampling.max_tokens": 1}, "nothing is left", InvalidRequest),
    "other tokens": Refusal({"token_ids": (*PROMPT[:-1], 63)}, "other tokens", BlockCorrupt),
    "other block": Refusal({"token_ids": (63, *PROMPT[1:])}, "other tokens", BlockCorrupt),
    "other salt": Refusal({"cache_salt": "tenant-b"}, "other tokens", BlockCorrupt),
    "huge token": Refusal({"token_ids": (-1, *PROMPT[1:])}, "token_ids.0. is -1", EngineInvalid),
    "bad sampling": Refusal({"sampling.top_p": 2.0}, "top_p is 2.0", SamplingError),
    "layout": Refusal({"ticket.fingerprint": bytes(8)}, "KV layouts differ", LayoutDiffers),
    "no such": Refusal({"ticket.handoff_id": "0" * 32}, "tail_key", TicketInvalid),
    "bad handoff id": Refusal({"ticket.handoff_id": "../x"}, "handoff_id", TicketInvalid),
    "tail digest": Refusal({"ticket.tail_digest": bytes(16)}, "tail_digest", TicketInvalid),
    "body digest": Refusal({"ticket.body_digest": bytes(32)}, "body", BlockCorrupt),
    "first token": Refusal({"ticket.first_token": 63}, "first_token", TicketInvalid),
    "num blocks": Refusal({"ticket.num_blocks": 3}, "num_blocks", TicketInvalid),
    "last hash": Refusal({"ticket.last_block_hash": bytes(32)}, "last_block_hash", TicketInvalid),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_bad_request_or_ticket_is_refused_and_nothing_is_held(refusal: Refusal) -> None:
    async with running_rig() as rig:
        good = await handed_over(rig)
        parts: dict[str, dict[str, object]] = {"": {}, "ticket": {}, "sampling": {}}
        for name, value in refusal.changes.items():
            part, _, field = name.rpartition(".")
            parts[part][field] = value
        bad = dataclasses.replace(
            good,
            ticket=dataclasses.replace(good.ticket, **parts["ticket"]),
            sampling=dataclasses.replace(good.sampling, **parts["sampling"]),
            **parts[""],
        )
        with pytest.raises(refusal.kind, match=refusal.message):
            await run_decode(rig, bad)
        statistics = rig.decode.statistics()
        assert (statistics.running, statistics.bytes_in_flight) == (0, 0)
        # The good one is not spoiled by the bad one.
        assert await run_decode(rig, good) == expected_tokens(PROMPT, good.sampling)[1:]
        await rig.assert_at_rest()


async def test_duplicates_and_stale_attempts_are_refused_and_a_newer_one_takes_over() -> None:
    async with running_rig() as rig:
        first = await handed_over(rig)
        held = asyncio.Event()

        async def hold(event: Resumed | Tokens) -> None:
            if isinstance(event, Tokens):
                held.set()
                await asyncio.Event().wait()

        running = asyncio.create_task(rig.decode.run(first, hold))
        await held.wait()
        with pytest.raises(AlreadyRunning):
            await run_decode(rig, first)
        second = await handed_over(rig, attempt=2)
        found = await run_decode(rig, second)
        assert found == expected_tokens(PROMPT, second.sampling)[1:]
        with pytest.raises(Conflict) as caught:
            await running
        assert caught.value.reason is Reason.STALE_ATTEMPT
        # The store fences it too, for ranks that never met the newer attempt.
        with pytest.raises(StaleAttempt):
            await run_decode(rig, first)
        await rig.assert_at_rest()


# Credits


async def test_a_credit_keeps_room_until_it_is_used() -> None:
    async with running_rig(decode={"max_num_seqs": 1}) as rig:
        request = await handed_over(rig)
        credit = await rig.decode.reserve("r-1", 45, FINGERPRINT)
        with pytest.raises(Overloaded) as caught:
            await rig.decode.reserve("r-2", 1, FINGERPRINT)
        assert caught.value.reason is Reason.POOL_FULL
        assert caught.value.retry_after_s is not None
        found = await run_decode(rig, dataclasses.replace(request, credit_id=credit.credit_id))
        assert found == expected_tokens(PROMPT, request.sampling)[1:]
        again = await rig.decode.reserve("r-2", 1, FINGERPRINT)
        assert await rig.decode.release(again.credit_id)
        assert not await rig.decode.release(again.credit_id)
        await rig.assert_at_rest()


async def test_a_guest_decodes_with_the_credit_of_its_request_alone() -> None:
    async with running_rig() as rig:
        request = dataclasses.replace(await handed_over(rig), needs_credit=True)
        other = await rig.decode.reserve("r-2", 45, FINGERPRINT)
        for credit_id in ("", "c1", other.credit_id):
            with pytest.raises(Conflict, match="no open credit of this request") as caught:
                await run_decode(rig, dataclasses.replace(request, credit_id=credit_id))
            assert caught.value.reason is Reason.LEASE_LOST
        credit = await rig.decode.reserve("r-1", 45, FINGERPRINT)
        found = await run_decode(rig, dataclasses.replace(request, credit_id=credit.credit_id))
        assert found == expected_tokens(PROMPT, request.sampling)[1:]
        await rig.decode.release(other.credit_id)
        await rig.assert_at_rest()


async def test_room_for_pages_counts_as_well_as_slots() -> None:
    async with running_rig(decode={"num_pages": 11}) as rig:
        credit = await rig.decode.reserve("r-1", 9 * BLOCK, FINGERPRINT)
        with pytest.raises(Overloaded, match="no KV room for 5 tokens"):
            await rig.decode.reserve("r-2", BLOCK + 1, FINGERPRINT)
        await rig.decode.release(credit.credit_id)
        credit = await rig.decode.reserve("r-2", BLOCK + 1, FINGERPRINT)
        await rig.decode.release(credit.credit_id)
        await rig.assert_at_rest()


async def test_a_credit_lapses_by_itself() -> None:
    async with running_rig(decode={"max_num_seqs": 1}) as rig:
        request = await handed_over(rig)
        credit = await rig.decode.reserve("r-1", 45, FINGERPRINT)
        rig.credit_clock.advance(5.0)
        assert await rig.decode.expire_credits() == 1
        assert not await rig.decode.release(credit.credit_id)
        other = await rig.decode.reserve("r-2", 45, FINGERPRINT)
        rig.credit_clock.advance(5.0)
        # A lapsed credit is no reason to refuse: the engine's own queue decides.
        lapsed = dataclasses.replace(request, credit_id=credit.credit_id)
        rig.credit_clock.advance(5.0)
        assert await rig.decode.expire_credits() == 1
        assert await run_decode(rig, lapsed) == expected_tokens(PROMPT, request.sampling)[1:]
        assert not await rig.decode.release(other.credit_id)
        await rig.assert_at_rest()


async def test_bad_reservations_are_refused() -> None:
    async with running_rig() as rig:
        with pytest.raises(InvalidRequest, match="request_id is ''"):
            await rig.decode.reserve("", 1, FINGERPRINT)
        with pytest.raises(InvalidRequest, match="num_tokens is 0"):
            await rig.decode.reserve("r-1", 0, FINGERPRINT)
        with pytest.raises(InvalidRequest, match="holds 256 tokens of KV") as too_long:
            await rig.decode.reserve("r-1", 257, FINGERPRINT)
        assert too_long.value.reason is Reason.PROMPT_TOO_LONG
        with pytest.raises(Mismatch, match="the sender has 0000000000000000") as caught:
            await rig.decode.reserve("r-1", 1, bytes(8))
        assert caught.value.reason is Reason.KV_LAYOUT_DIFFERS
        await rig.assert_at_rest()


async def test_a_failed_fetch_gives_its_credit_back() -> None:
    async with running_rig(decode={"max_num_seqs": 1}) as rig:
        request = await handed_over(rig)
        credit = await rig.decode.reserve("r-1", 45, FINGERPRINT)
        rig.backend.failures["get"] = StoreDown("memory", "unplugged")
        with pytest.raises(StoreDown):
            await run_decode(rig, dataclasses.replace(request, credit_id=credit.credit_id))
        del rig.backend.failures["get"]
        assert rig.metrics.value("disagg_handoff_total", outcome="store_down") == 1
        other = await rig.decode.reserve("r-2", 45, FINGERPRINT)
        await rig.decode.release(other.credit_id)
        await abandon(rig, request)


# Leaving


@pytest.mark.parametrize("number", [2, 3, 5, 8])
async def test_a_caller_cancelled_at_any_token_leaves_nothing(number: int) -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        await cancel_when(
            lambda emit: rig.decode.run(request, emit),
            lambda event: isinstance(event, Tokens) and event.tokens[-1].number >= number,
        )
        await rig.assert_at_rest()


async def test_a_caller_cancelled_when_resumed_leaves_nothing_and_frees_its_credit() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        credit = await rig.decode.reserve("r-1", 45, FINGERPRINT)
        asked = dataclasses.replace(request, credit_id=credit.credit_id)
        await cancel_when(
            lambda emit: rig.decode.run(asked, emit), lambda event: isinstance(event, Resumed)
        )
        await rig.assert_at_rest()
        others = [await rig.decode.reserve(f"r-{i}", 45, FINGERPRINT) for i in range(4)]
        for other in others:
            await rig.decode.release(other.credit_id)


@pytest.mark.parametrize("stage", ["fence", "acquire", "get"])
async def test_a_caller_cancelled_during_the_fetch_leaves_nothing(stage: str) -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        rig.backend.stages[stage].close()
        task = asyncio.create_task(run_decode(rig, request))
        await rig.backend.stages[stage].wait_reached()
        task.cancel()
        await asyncio.sleep(0)
        rig.backend.stages[stage].open()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Whoever was cancelled after the lease was taken has released it; before, it is the
        # balancer's to abort.
        rig.store.abort(request.ticket.handoff_id)
        await rig.assert_at_rest()


async def test_a_caller_cancelled_in_line_or_in_the_engines_queue_leaves_nothing() -> None:
    async with running_rig(decode={"max_num_seqs": 1}) as rig:
        first = await handed_over(rig)
        second = await handed_over(rig, request_id="r-2")
        grant = await rig.decode_budget.take(1 << 20)
        task = asyncio.create_task(run_decode(rig, first))
        await until(lambda: rig.decode.statistics().waiting_for_bytes == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        grant.give_back()
        # The only slot is kept for somebody else, so the sequence waits in the engine.
        credit = await rig.decode.reserve("r-3", 1, FINGERPRINT)
        task = asyncio.create_task(run_decode(rig, second))
        await until(lambda: rig.decode_core.statistics().waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rig.decode.release(credit.credit_id)
        await abandon(rig, first)


async def test_one_sequence_too_many_is_told_to_come_later() -> None:
    async with running_rig(decode_bytes=1) as rig:
        requests = [await handed_over(rig, request_id=f"r-{i}") for i in range(4)]
        rig.backend.stages["get"].close()
        tasks = [asyncio.create_task(run_decode(rig, request)) for request in requests[:3]]
        await until(lambda: rig.decode.statistics().waiting_for_bytes == 2)
        with pytest.raises(BudgetFull, match="fetched bytes"):
            await run_decode(rig, requests[3])
        rig.backend.stages["get"].open()
        for task in tasks:
            assert await task == expected_tokens(PROMPT, requests[0].sampling)[1:]
        await abandon(rig, requests[3])


async def test_a_ticket_is_good_once() -> None:
    async with running_rig() as rig:
        request = await handed_over(rig)
        await run_decode(rig, request)
        with pytest.raises(BlockMissing, match="body"):
            await run_decode(rig, request)
        await rig.assert_at_rest()
