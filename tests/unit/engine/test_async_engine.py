"""AsyncEngine: streams, back-pressure, leaving, dying, stopping; with a real step thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from engine.async_engine import AsyncEngine, EngineStopped
from engine.engine import EngineFailed, LLMEngine
from engine.kv_connector import InMemoryExport
from engine.parallel.lockstep import IntArray
from engine.parallel.votes import LocalVote
from engine.request import (
    DuplicateRequest,
    EngineRequest,
    InvalidRequest,
    QueueFull,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokenOut,
)
from tests.fakes.toy_runner import expected_tokens
from tests.unit.engine.test_engine import make_engine, prompt_of, request

BOUND_S = 10.0


@asynccontextmanager
async def running(
    engine: LLMEngine, clock: Callable[[], float] = time.monotonic, queue_events: int = 256
) -> AsyncIterator[AsyncEngine]:
    serving = AsyncEngine(engine, clock=clock, queue_events=queue_events, idle_wait_s=5.0)
    serving.start()
    try:
        async with asyncio.timeout(BOUND_S):
            yield serving
    finally:
        await serving.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        # The condition is the engine thread's, which sets no event of this loop.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def read(serving: AsyncEngine, asked: EngineRequest) -> list[int]:
    async with serving.submit(asked) as handle:
        return [event.token_id async for event in handle if isinstance(event, TokenOut)]


async def test_streams_of_many_callers_equal_each_alone() -> None:
    engine, _ = make_engine()
    asked = [request(f"r{i}", 3 + 4 * i, i, max_tokens=15) for i in range(7)]
    async with running(engine) as serving:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(serving, one)) for one in asked]
        for one, task in zip(asked, tasks, strict=True):
            assert task.result() == expected_tokens(one.token_ids, one.sampling)
        await until(lambda: serving.statistics().running == 0)
        assert serving.is_healthy()
    engine.check_integrity()
    assert not engine.has_work()


async def test_leaving_early_frees_and_the_id_can_be_used_again_at_once() -> None:
    engine, _ = make_engine(num_pages=128, context=500)
    long = request("a", 5, max_tokens=400)
    (first,) = expected_tokens(long.token_ids, SamplingParams(max_tokens=1))
    async with running(engine) as serving:
        for _ in range(20):
            async with serving.submit(long) as handle:
                event = await anext(handle)
                assert isinstance(event, TokenOut)
                assert event.number == 1
                assert event.token_id == first
        await until(lambda: serving.statistics().running + serving.statistics().waiting == 0)
    engine.check_integrity()
    assert engine.statistics().free_pages == 127


async def test_a_cancelled_reader_aborts_its_request() -> None:
    engine, _ = make_engine(num_pages=128, context=500)
    async with running(engine) as serving:
        started = asyncio.Event()

        async def reader() -> None:
            async with serving.submit(request("a", 5, max_tokens=400)) as handle:
                async for _ in handle:
                    started.set()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(reader())
            await started.wait()
            task.cancel()
        assert task.cancelled()
        await until(lambda: serving.statistics().running == 0)
        assert await read(serving, request("a", 5, max_tokens=3))
    assert not engine.has_work()


async def test_a_lagging_reader_pauses_its_sequence_and_loses_nothing() -> None:
    engine, _ = make_engine(num_pages=128, context=500)
    slow, fast = request("slow", 5, max_tokens=200), request("fast", 5, 1, max_tokens=200)
    async with running(engine, queue_events=8) as serving:
        async with serving.submit(slow) as handle:
            assert await read(serving, fast) == expected_tokens(fast.token_ids, fast.sampling)
            await until(lambda: handle._is_paused)
            held = len(handle._events)
            # What was under way when the pause was posted still arrives; it is a few steps.
            assert 8 <= held < 100
            tokens = [event.token_id async for event in handle if isinstance(event, TokenOut)]
        assert tokens == expected_tokens(slow.token_ids, slow.sampling)
        assert not handle._is_paused


async def test_bad_requests_are_refused_in_the_callers_frame() -> None:
    engine, _ = make_engine(max_waiting=1, max_num_seqs=1, num_pages=128, context=500)
    async with running(engine) as serving:
        with pytest.raises(InvalidRequest, match="empty"):
            serving.submit(EngineRequest(request_id="a", token_ids=()))
        async with serving.submit(request("a", 5, max_tokens=400)) as handle:
            with pytest.raises(DuplicateRequest):
                serving.submit(request("a"))
            async with serving.submit(request("b", 5, max_tokens=400)):
                with pytest.raises(QueueFull, match="= 2: try later"):
                    serving.submit(request("c"))
            assert isinstance(await anext(handle), TokenOut)


async def test_an_export_that_throws_costs_its_own_request_only() -> None:
    class Broken(InMemoryExport):
        def wants_state(self, end_tokens: int) -> bool:
            raise ZeroDivisionError

    engine, _ = make_engine()
    asked = EngineRequest(request_id="a", token_ids=prompt_of(9), export=Broken(4))
    async with running(engine) as serving:
        async with serving.submit(asked) as handle:
            (event,) = [event async for event in handle]
        assert isinstance(event, RequestFailed)
        assert isinstance(event.error, ZeroDivisionError)
        assert len(await read(serving, request("a", 5, max_tokens=3))) == 3
        assert serving.is_healthy()
    assert not engine.has_work()


async def test_a_dead_step_loop_fails_every_handle_and_turns_health_red() -> None:
    engine, runner = make_engine(num_pages=128, context=500)
    async with running(engine) as serving:
        async with serving.submit(request("a", 5, max_tokens=400)) as first:
            await anext(first)
            runner.fail_run = RuntimeError("device lost")
            with pytest.raises(EngineFailed, match="device lost"):
                async for _ in first:
                    pass
        await until(lambda: not serving._thread.is_alive())
        assert not serving.is_healthy()
        with pytest.raises(EngineStopped, match="device lost"):
            serving.submit(request("b"))
        with pytest.raises(EngineStopped):
            await serving.try_reserve("credit", 8)


async def test_health_is_progress_not_load() -> None:
    offset = [0.0]
    engine, runner = make_engine()
    release, entered = threading.Event(), threading.Event()
    run = runner.run

    def stuck(plan: object) -> object:
        entered.set()
        assert release.wait(BOUND_S)
        return run(plan)  # type: ignore[arg-type]

    runner.run = stuck  # type: ignore[assignment,method-assign]
    async with (
        running(engine, clock=lambda: offset[0]) as serving,
        serving.submit(request("a", 5, max_tokens=1)) as handle,
    ):
        await until(entered.is_set)
        assert serving.is_healthy()
        offset[0] = 61.0
        assert not serving.is_healthy()
        assert serving.progress_age_s() == 61.0
        release.set()
        assert isinstance(await anext(handle), TokenOut)
        await until(serving.is_healthy)


class WatchedVote(LocalVote):
    """Notes when the step loop sleeps and for how long at most."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []
        self.is_asleep = False

    def wait_for_work(self, timeout_s: float) -> None:
        self.timeouts.append(timeout_s)
        self.is_asleep = True
        super().wait_for_work(timeout_s)
        self.is_asleep = False


async def test_an_idle_engine_sleeps_until_work_comes() -> None:
    engine, runner = make_engine()
    vote = WatchedVote()
    engine._agreement.vote = vote
    async with running(engine) as serving:
        for number in range(1, 4):
            await until(lambda: vote.is_asleep)
            num_sleeps = len(vote.timeouts)
            # The doorbell, not the time-out of 5 s, brings this answer.
            async with asyncio.timeout(2.0):
                assert len(await read(serving, request("a", 5, max_tokens=3))) == 3
            await until(lambda: vote.is_asleep)
            # A ring per command at most: the request, and nothing after its end.
            assert len(vote.timeouts) <= num_sleeps + 2
            assert len(runner.plans) == 3 * number
    assert set(vote.timeouts) == {5.0}


async def test_a_rest_with_commands_pending_goes_through_the_doorbell_too() -> None:
    """The peers of a group learn from the doorbell alone that this rank goes on to vote."""
    engine, _ = make_engine()
    during_vote: list[Callable[[], None]] = []

    class InterruptedVote(WatchedVote):
        def reduce_max(self, vector: IntArray) -> IntArray:
            while during_vote:
                during_vote.pop()()
            return super().reduce_max(vector)

    engine._agreement.vote = vote = InterruptedVote()
    async with running(engine) as serving:
        await until(lambda: vote.is_asleep)
        applied = threading.Event()
        num_sleeps: list[int] = []

        def note() -> None:
            num_sleeps.append(len(vote.timeouts))
            applied.set()

        def post() -> None:
            num_sleeps.append(len(vote.timeouts))
            serving._post(note)

        during_vote.append(post)
        engine.ring()
        await until(applied.is_set)
        assert num_sleeps[1] == num_sleeps[0] + 1


@pytest.mark.parametrize(
    # 400 tokens: the reader does not read meanwhile, so back-pressure stops it before the end.
    ("drain_s", "max_tokens", "reason"),
    [(BOUND_S, 150, "length"), (0.0, 400, "abort")],
)
async def test_stop_drains_within_its_bound_then_aborts(
    drain_s: float, max_tokens: int, reason: str
) -> None:
    engine, _ = make_engine(num_pages=128, context=500)
    serving = AsyncEngine(engine, clock=time.monotonic)
    serving.start()
    async with serving.submit(request("a", 5, max_tokens=max_tokens)) as handle:
        await anext(handle)
        await serving.stop(drain_s=drain_s)
        with pytest.raises(EngineStopped, match="draining or stopped"):
            serving.submit(request("b"))
        events = [event async for event in handle]
    assert isinstance(events[-1], TokenOut | RequestFinished)
    assert events[-1].finish_reason == reason
    assert not serving.is_healthy()
    assert not engine.has_work()
    await serving.stop()


async def test_reservations_are_answered_by_the_engine_thread() -> None:
    engine, _ = make_engine(num_pages=11)
    async with running(engine) as serving:
        assert await serving.try_reserve("a", 40)
        assert not await serving.try_reserve("b", 4)
        assert await serving.release_reservation("a")
        assert not await serving.release_reservation("a")


async def test_a_group_is_complete_once_all_have_voted() -> None:
    engine, _ = make_engine()
    peers_come = threading.Event()

    class PatientVote(LocalVote):
        def reduce_max(self, vector: IntArray) -> IntArray:
            assert peers_come.wait(BOUND_S)
            return super().reduce_max(vector)

    engine._agreement.vote = PatientVote()
    async with running(engine) as serving:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await serving.wait_complete()
        peers_come.set()
        await serving.wait_complete()
        await serving.wait_complete()


async def test_nothing_is_accepted_before_the_start() -> None:
    engine, _ = make_engine()
    serving = AsyncEngine(engine, clock=time.monotonic)
    with pytest.raises(EngineStopped, match="not started"):
        serving.submit(request("a"))
    assert not serving.is_healthy()
    await serving.stop()


async def test_a_sampled_stream_is_the_same_in_company() -> None:
    engine, _ = make_engine()
    alone = EngineRequest(
        request_id="x",
        token_ids=prompt_of(9),
        sampling=SamplingParams(temperature=1.0, seed=2**63 + 5, max_tokens=12, ignore_eos=True),
    )
    async with running(engine) as serving:
        expected = await read(serving, alone)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(read(serving, alone))
            for i in range(3):
                group.create_task(read(serving, request(f"n{i}", 4 + i, i, max_tokens=9)))
        assert task.result() == expected == expected_tokens(alone.token_ids, alone.sampling)


async def test_work_that_nobody_can_run_is_not_healthy_for_ever_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    engine, _ = make_engine(num_pages=11)
    async with running(engine, clock=lambda: now[0]) as serving:
        assert await serving.try_reserve("credit", 40)
        async with serving.submit(request("a", 20, max_tokens=2)) as handle:
            await until(lambda: serving.statistics().stalled_rounds > 0)
            assert serving.is_healthy()
            now[0] = 61.0
            await until(lambda: not serving.is_healthy())
            rounds = serving.statistics().stalled_rounds
            await until(lambda: serving.statistics().stalled_rounds > rounds + 3)
            (record,) = [r for r in caplog.records if "no step for" in r.message]
            assert record.message.startswith("no step for 61 s although there is work, ")
            assert record.message.endswith(
                "group local, rank 0: step 0, kind none (nothing can run), "
                "last vote [1, 0, 1, 0, 0, 0, 0, 0, 0]"
            )
            assert await serving.release_reservation("credit")
            assert [event.number async for event in handle if isinstance(event, TokenOut)] == [1, 2]
            assert serving.is_healthy()
