"""A prompt's path: what it emits, what it stores, what it refuses, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import pytest

from engine.plan import StepPlan, StepResult
from engine.request import ChunkDone, PoolFull, PromptTooLong, SamplingError
from engine.request import InvalidRequest as EngineInvalidRequest
from kvstore.errors import StaleAttempt, StoreDown, StoreFull
from prefill_service.prefill import Admitted, Committed, FirstToken, PrefillEvent, PrefixHit
from prefill_service.stored import BlocksStored
from runtime.budget import BudgetFull
from runtime.errors import AlreadyRunning, Conflict, InvalidRequest, Reason
from tests.fakes.services import (
    BLOCK,
    cancel_when,
    hold_steps,
    journey,
    outcome,
    prompt,
    run_decode,
    run_prefill,
    running_rig,
    sequence,
    tokens,
    until,
)
from tests.fakes.toy_runner import expected_tokens


async def test_the_events_of_a_prompt_in_their_order() -> None:
    async with running_rig() as rig:
        request = prompt(tokens(37))
        events = await run_prefill(rig, request)
        kinds = [type(event) for event in events]
        assert kinds[0] is Admitted
        assert kinds[-2:] == [FirstToken, Committed]
        chunks = [event for event in events if isinstance(event, ChunkDone)]
        assert len(chunks) == len(events) - 3
        # A chunk ends where boundary state is wanted: every two blocks, and at the last full one.
        assert [chunk.computed_tokens for chunk in chunks] == [8, 16, 24, 32, 36]
        first, ticket = outcome(events)
        assert [first] == expected_tokens(request.token_ids, request.sampling)[:1]
        assert ticket is not None
        assert (ticket.request_id, ticket.attempt, ticket.num_tokens) == ("r-1", 1, 37)
        assert (ticket.num_blocks, ticket.first_token) == (9, first)
        (lease,) = rig.store.audit()
        assert lease.handoff_id == ticket.handoff_id
        rig.store.abort(ticket.handoff_id)
        await rig.assert_at_rest()


async def test_stored_blocks_are_reported_while_later_ones_compute() -> None:
    async with running_rig() as rig:
        await journey(rig, tokens(16))
        asked = dataclasses.replace(prompt(tokens(37), request_id="r-2"), report_stored=True)
        gate, events = hold_steps(rig), []

        async def emit(event: PrefillEvent) -> None:
            events.append(event)
            if isinstance(event, BlocksStored):
                gate.set()

        await rig.prefill.run(asked, emit)
        reports = [event.num_blocks for event in events if isinstance(event, BlocksStored)]
        assert reports[0] == 4, "the loaded prefix can be read at once"
        assert reports == sorted(set(reports))
        assert reports[-1] <= 9
        kinds = [type(event) for event in events]
        assert kinds[0] is Admitted
        assert kinds[-1] is Committed
        assert kinds.index(BlocksStored) < kinds.index(FirstToken)
        _, ticket = outcome(events)
        assert ticket is not None
        (lease,) = rig.store.audit()
        # Five new blocks, one token behind them and the state.
        assert lease.num_bytes == 5 * 4 * BLOCK + 4 + 16
        rig.store.abort(ticket.handoff_id)
        await rig.assert_at_rest()


async def test_a_prompt_of_one_chunk_has_nothing_to_report() -> None:
    async with running_rig(state_every_blocks=0) as rig:
        asked = dataclasses.replace(prompt(tokens(16)), report_stored=True)
        rig.backend.stages["put"].close()
        task = asyncio.ensure_future(run_prefill(rig, asked))
        await rig.backend.stages["put"].wait_reached()
        await until(lambda: rig.prefill_core.statistics().running == 0)
        rig.backend.stages["put"].open()
        events = await task
        assert not any(isinstance(event, BlocksStored) for event in events)
        _, ticket = outcome(events)
        assert ticket is not None
        rig.store.abort(ticket.handoff_id)
        await rig.assert_at_rest()


async def test_a_caller_who_leaves_while_a_report_is_sent_leaves_nothing() -> None:
    async with running_rig() as rig:
        await journey(rig, tokens(16))
        asked = dataclasses.replace(prompt(tokens(37), request_id="r-2"), report_stored=True)
        gate = hold_steps(rig)
        await cancel_when(
            lambda emit: rig.prefill.run(asked, emit),
            lambda event: isinstance(event, BlocksStored),
        )
        gate.set()
        await rig.assert_at_rest()


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 35, 36, 37])
async def test_prompts_around_block_borders_travel_through_both_ranks(length: int) -> None:
    async with running_rig() as rig:
        for _ in range(2):  # the second time from the stored prefix
            request = prompt(tokens(length))
            assert await journey(rig, tokens(length)) == expected_tokens(
                request.token_ids, request.sampling
            )
        await rig.assert_at_rest()


async def test_a_stored_prefix_is_loaded_named_and_not_written_again() -> None:
    async with running_rig() as rig:
        await journey(rig, tokens(32))
        written = rig.store.statistics().blocks_written
        computed = rig.prefill_engine.statistics().computed_tokens
        events = await run_prefill(rig, prompt(tokens(40), request_id="r-2"))
        (hit,) = [event for event in events if isinstance(event, PrefixHit)]
        assert hit.cached_tokens == 32
        assert hit.num_bytes == 8 * 4 * BLOCK + 16
        _, ticket = outcome(events)
        assert ticket is not None
        # Two blocks, the state at the end, and two payloads of the tail.
        assert rig.store.statistics().blocks_written == written + 5
        assert rig.prefill_core.statistics().computed_tokens == computed + 8
        found = await run_decode(rig, sequence(ticket, tokens(40)))
        request = prompt(tokens(40))
        assert found == expected_tokens(request.token_ids, request.sampling)[1:]
        await rig.assert_at_rest()


async def test_a_fully_stored_prompt_still_computes_its_last_token() -> None:
    async with running_rig() as rig:
        want = await journey(rig, tokens(32))
        events = await run_prefill(rig, prompt(tokens(32), request_id="r-2"))
        (hit,) = [event for event in events if isinstance(event, PrefixHit)]
        assert hit.cached_tokens == 24, "the state before the last block, as every second one"
        first, ticket = outcome(events)
        assert ticket is not None
        assert [first, *await run_decode(rig, sequence(ticket, tokens(32)))] == want
        await rig.assert_at_rest()


async def test_a_prefix_without_state_is_replayed_and_leaves_its_state() -> None:
    """Seven blocks are shared, and the only state is behind the ninth."""
    async with running_rig(state_every_blocks=0, window_replay_tokens=6) as rig:
        await journey(rig, tokens(37))
        ids = (*tokens(28), 60, 61)
        want = expected_tokens(ids, prompt(ids).sampling)
        for name, cached, replayed in (("r-2", 22, 6), ("r-3", 28, 0)):
            written = rig.store.statistics().blocks_written
            computed = rig.prefill_core.statistics().computed_tokens
            events = await run_prefill(rig, prompt(ids, request_id=name))
            [hit] = [event for event in events if isinstance(event, PrefixHit)]
            assert (hit.cached_tokens, hit.replayed_tokens) == (cached, replayed)
            assert hit.num_bytes == 7 * 4 * BLOCK + (0 if replayed else 16)
            assert rig.prefill_core.statistics().computed_tokens == computed + replayed + 2
            # Two payloads of the tail and, the first time, the state behind the last block.
            assert rig.store.statistics().blocks_written == written + 2 + (replayed > 0)
            first, ticket = outcome(events)
            assert ticket is not None
            assert [first, *await run_decode(rig, sequence(ticket, ids))] == want
        counted = {
            source: rig.metrics.value("disagg_prompt_tokens_total", source=source)
            for source in ("store_hit", "replayed", "computed")
        }
        assert counted == {"store_hit": 22 + 28, "replayed": 6, "computed": 37 + 2 + 2}
        await rig.assert_at_rest()


async def test_bypassing_uses_nothing_that_is_stored() -> None:
    async with running_rig() as rig:
        want = await journey(rig, tokens(32))
        lookups = rig.store.statistics().lookups
        computed = rig.prefill_core.statistics().computed_tokens
        events = await run_prefill(
            rig, prompt(tokens(32), request_id="r-2", attempt=2, bypass_prefix=True)
        )
        assert not any(isinstance(event, PrefixHit) for event in events)
        assert rig.store.statistics().lookups == lookups
        assert rig.prefill_core.statistics().computed_tokens == computed + 32
        assert rig.metrics.value("disagg_prefix_fallback_total", cause="bypassed") == 1
        first, ticket = outcome(events)
        assert ticket is not None
        assert [first, *await run_decode(rig, sequence(ticket, tokens(32)))] == want
        await rig.assert_at_rest()


async def test_tenants_do_not_see_each_others_prefixes() -> None:
    async with running_rig() as rig:
        await journey(rig, tokens(32), cache_salt="tenant-a")
        other = await run_prefill(rig, prompt(tokens(32), request_id="r-2", cache_salt="tenant-b"))
        assert not any(isinstance(event, PrefixHit) for event in other)
        same = await run_prefill(rig, prompt(tokens(32), request_id="r-3", cache_salt="tenant-a"))
        assert any(isinstance(event, PrefixHit) for event in same)


async def test_a_first_token_that_ends_the_generation_leaves_blocks_and_no_ticket() -> None:
    async with running_rig() as rig:
        events = await run_prefill(rig, prompt(tokens(32), max_tokens=1))
        (first,) = [event for event in events if isinstance(event, FirstToken)]
        assert first.token.finish_reason == "length"
        assert outcome(events)[1] is None
        stop = first.token.token_id
        events = await run_prefill(
            rig, prompt(tokens(32), request_id="r-2", stop_token_ids=(stop,))
        )
        (again,) = [event for event in events if isinstance(event, FirstToken)]
        assert again.token.finish_reason == "stop"
        assert any(isinstance(event, PrefixHit) for event in events), "its blocks were kept"
        await rig.assert_at_rest()


async def test_a_resumed_request_goes_on_where_the_first_attempt_stopped() -> None:
    async with running_rig() as rig:
        want = await journey(rig, tokens(18), max_tokens=12, temperature=1.0, seed=5)
        done = want[:5]
        rest = await journey(
            rig,
            [*tokens(18), *done],
            attempt=2,
            num_generated=5,
            max_tokens=12,
            temperature=1.0,
            seed=5,
        )
        assert [*done, *rest] == want
        await rig.assert_at_rest()


BAD = [
    ({"request_id": ""}, "request_id is ''", InvalidRequest),
    ({"request_id": "a b"}, "request_id is 'a b'", InvalidRequest),
    ({"attempt": 0}, "attempt is 0: attempts count from 1", InvalidRequest),
    ({"token_ids": ()}, "token_ids is empty", InvalidRequest),
    ({"num_generated": 3}, "num_generated is 3 of 3 token_ids", InvalidRequest),
    ({"sampling.max_tokens": 0}, "sampling.max_tokens is 0", InvalidRequest),
    ({"token_ids": (1, 2, 64)}, r"token_ids\[2\] is 64", EngineInvalidRequest),
    ({"token_ids": (1, -2)}, r"token_ids\[1\] is -2", EngineInvalidRequest),
    ({"token_ids": tuple([2] * 200)}, "the prompt has 200 tokens", PromptTooLong),
    ({"sampling.temperature": -1.0}, "temperature is -1.0", SamplingError),
    ({"sampling.temperature": float("nan")}, "temperature is nan", SamplingError),
    ({"sampling.temperature": float("inf")}, "temperature is inf", SamplingError),
    ({"sampling.top_p": 0.0}, "top_p is 0.0", SamplingError),
    ({"sampling.top_p": 1.5}, "top_p is 1.5", SamplingError),
    ({"sampling.stop_token_ids": (99,)}, "stop_token_ids is 99", SamplingError),
]


@pytest.mark.parametrize(("changes", "message", "kind"), BAD, ids=lambda value: str(value)[:40])
async def test_bad_input_is_refused_before_anything_is_held(
    changes: dict[str, object], message: str, kind: type[Exception]
) -> None:
    request = prompt((1, 2, 3))
    own = {name: value for name, value in changes.items() if "." not in name}
    sampling = {name.split(".")[1]: value for name, value in changes.items() if "." in name}
    request = dataclasses.replace(
        request, sampling=dataclasses.replace(request.sampling, **sampling), **own
    )
    async with running_rig() as rig:
        with pytest.raises(kind, match=message):
            await run_prefill(rig, request)
        assert rig.store.statistics().lookups == 0
        await rig.assert_at_rest()


async def test_a_prompt_that_can_never_fit_the_pool_is_refused() -> None:
    async with running_rig(prefill={"num_pages": 5}) as rig:
        with pytest.raises(PoolFull, match="the pool holds 16 in all"):
            await run_prefill(rig, prompt(tokens(17)))
        await rig.assert_at_rest()


async def test_duplicates_and_stale_attempts_are_refused_while_one_runs() -> None:
    async with running_rig() as rig:
        rig.backend.stages["lookup"].close()
        running = asyncio.create_task(run_prefill(rig, prompt(tokens(9), attempt=2)))
        await rig.backend.stages["lookup"].wait_reached()
        with pytest.raises(AlreadyRunning, match="'r-1' attempt 2"):
            await run_prefill(rig, prompt(tokens(9), attempt=2))
        with pytest.raises(Conflict) as caught:
            await run_prefill(rig, prompt(tokens(9), attempt=1))
        assert caught.value.reason is Reason.STALE_ATTEMPT
        rig.backend.stages["lookup"].open()
        _, ticket = outcome(await running)
        assert ticket is not None
        # The store remembers, also for ranks that never saw the newer one.
        with pytest.raises(StaleAttempt):
            await run_prefill(rig, prompt(tokens(9), attempt=1))
        rig.store.abort(ticket.handoff_id)
        await rig.assert_at_rest()


async def test_one_prompt_too_many_is_told_to_come_later() -> None:
    async with running_rig(prefill_bytes=1) as rig:
        rig.backend.stages["lookup"].close()
        running = [
            asyncio.create_task(run_prefill(rig, prompt(tokens(9), request_id=f"r-{i}")))
            for i in range(3)
        ]
        await rig.backend.stages["lookup"].wait_reached()
        await until(lambda: rig.prefill.statistics().waiting_for_bytes == 2)
        with pytest.raises(BudgetFull, match="bytes in flight"):
            await run_prefill(rig, prompt(tokens(9), request_id="r-9"))
        rig.backend.stages["lookup"].open()
        for task in running:
            _, ticket = outcome(await task)
            assert ticket is not None
            rig.store.abort(ticket.handoff_id)
        await rig.assert_at_rest()


@pytest.mark.parametrize("call", ["fence", "lookup", "put", "commit"])
async def test_a_store_that_fails_fails_the_prompt_and_leaves_nothing(call: str) -> None:
    async with running_rig() as rig:
        rig.backend.failures[call] = StoreDown("memory", "unplugged")
        with pytest.raises(StoreDown, match="unplugged"):
            await run_prefill(rig, prompt(tokens(70)))
        del rig.backend.failures[call]
        await rig.assert_at_rest()
        assert await journey(rig, tokens(70)) == expected_tokens(
            tokens(70), prompt(tokens(70)).sampling
        )


async def test_a_full_store_fails_the_prompt_with_its_own_error() -> None:
    async with running_rig() as rig:
        rig.backend.failures["put"] = StoreFull("memory", "maxmemory")
        with pytest.raises(StoreFull):
            await run_prefill(rig, prompt(tokens(9)))
        await rig.assert_at_rest()


async def test_a_failing_caller_fails_the_prompt_and_leaves_nothing() -> None:
    async with running_rig() as rig:

        async def emit(event: object) -> None:
            if isinstance(event, Committed):
                raise ConnectionResetError("the caller left")

        with pytest.raises(ConnectionResetError):
            await rig.prefill.run(prompt(tokens(9)), emit)
        await rig.assert_at_rest()


@pytest.mark.parametrize("kind", [Admitted, ChunkDone, FirstToken, Committed])
async def test_a_cancelled_caller_leaves_nothing_at_any_event(kind: type) -> None:
    async with running_rig() as rig:
        await cancel_when(
            lambda emit: rig.prefill.run(prompt(tokens(37)), emit),
            lambda event: isinstance(event, kind),
        )
        await rig.assert_at_rest()


@pytest.mark.parametrize("computed", [8, 16, 24, 32, 36])
async def test_a_caller_cancelled_in_any_chunk_leaves_nothing(computed: int) -> None:
    async with running_rig() as rig:
        await cancel_when(
            lambda emit: rig.prefill.run(prompt(tokens(37)), emit),
            lambda event: isinstance(event, ChunkDone) and event.computed_tokens == computed,
        )
        await rig.assert_at_rest()


@pytest.mark.parametrize("stage", ["fence", "lookup", "put", "commit"])
async def test_a_caller_cancelled_inside_a_store_call_leaves_nothing(stage: str) -> None:
    async with running_rig() as rig:
        rig.backend.stages[stage].close()
        task = asyncio.create_task(run_prefill(rig, prompt(tokens(37))))
        await rig.backend.stages[stage].wait_reached()
        task.cancel()
        await asyncio.sleep(0)
        rig.backend.stages[stage].open()
        with pytest.raises(asyncio.CancelledError):
            await task
        await rig.assert_at_rest()


async def test_a_caller_cancelled_in_line_for_bytes_or_in_the_engines_queue_leaves_nothing() -> (
    None
):
    async with running_rig(prefill={"max_num_seqs": 1}) as rig:
        grant = await rig.prefill_budget.take(1 << 20)
        waiting = asyncio.create_task(run_prefill(rig, prompt(tokens(9))))
        await until(lambda: rig.prefill.statistics().waiting_for_bytes == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        grant.give_back()
        # The only slot is taken by a prompt whose caller does not read.
        await cancel_when(
            lambda emit: rig.prefill.run(prompt(tokens(37), request_id="r-2"), emit),
            lambda event: isinstance(event, Admitted),
        )
        await rig.assert_at_rest()


async def test_waiting_for_the_engine_and_computing_are_told_apart() -> None:
    async with running_rig(prefill={"max_num_seqs": 1}) as rig:
        gate = threading.Event()
        run, first_steps = rig.prefill_runner.run, []

        def slow(plan: StepPlan) -> StepResult:
            if not first_steps:
                first_steps.append(plan)
                assert gate.wait(5.0)
            return run(plan)

        rig.prefill_runner.run = slow  # type: ignore[method-assign]
        ahead = asyncio.create_task(run_prefill(rig, prompt(tokens(9), request_id="r-0")))
        await until(lambda: bool(first_steps))
        behind = asyncio.create_task(run_prefill(rig, prompt(tokens(9))))
        await until(lambda: len(rig.prefill_engine._open) == 2)
        await asyncio.sleep(0.05)  # the time that has to show up as waiting
        gate.set()
        for task, waited in ((ahead, False), (behind, True)):
            events = await task
            (first,) = [event for event in events if isinstance(event, FirstToken)]
            assert (first.queue_s >= 0.05) is waited
            assert (first.compute_s >= 0.05) is not waited
            _, ticket = outcome(events)
            assert ticket is not None
            rig.store.abort(ticket.handoff_id)
