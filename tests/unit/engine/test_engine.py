"""LLMEngine with the toy runner: what comes out, when it ends, what it refuses, what it frees."""

from __future__ import annotations

import pytest

from engine.config import EngineRole
from engine.engine import EngineFailed
from engine.kv_connector import InMemoryExport
from engine.plan import StepKind
from engine.request import (
    ChunkDone,
    EngineRequest,
    PoolFull,
    RequestFailed,
    RequestFinished,
    SamplingParams,
    TokenOut,
)
from tests.fakes.toy_engine import (
    BLOCK,
    assert_empty,
    drain,
    make_engine,
    prompt_of,
    request,
    tokens_of,
)
from tests.fakes.toy_runner import EOS, expected_tokens


@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 40])
def test_one_request_gives_the_tokens_of_the_model(length: int) -> None:
    engine, _ = make_engine()
    asked = request("a", length)
    engine.add(asked)
    events = drain(engine)
    assert tokens_of(events, "a") == expected_tokens(asked.token_ids, asked.sampling)
    last = events[-1]
    assert isinstance(last, TokenOut)
    assert last.finish_reason == "length"
    assert last.is_last


def test_chunks_are_reported_and_stay_within_the_budget() -> None:
    engine, runner = make_engine()
    engine.add(request("a", 40, max_tokens=1))
    events = drain(engine)
    assert [e.computed_tokens for e in events if isinstance(e, ChunkDone)] == [16, 32]
    assert [plan.num_tokens for plan in runner.plans] == [16, 16, 8]
    assert all(plan.kind is StepKind.PREFILL for plan in runner.plans)


def test_many_requests_at_once_equal_each_alone() -> None:
    engine, runner = make_engine()
    asked = [
        request(f"r{i}", 1 + 5 * i, i, temperature=float(i % 2), seed=i, max_tokens=12)
        for i in range(9)
    ]
    for one in asked:
        engine.add(one)
    events = drain(engine)
    for one in asked:
        expected = expected_tokens(one.token_ids, one.sampling)
        assert tokens_of(events, one.request_id) == expected
    assert max(len(plan.sequences) for plan in runner.plans) == 4


def test_memory_pressure_swaps_the_last_to_arrive_and_changes_no_token() -> None:
    engine, _ = make_engine(num_pages=12, prefill_attempt_interval=2)
    asked = [request(f"r{i}", 6, i, max_tokens=20) for i in range(4)]
    for one in asked:
        engine.add(one)
    events = drain(engine)
    for one in asked:
        expected = expected_tokens(one.token_ids, one.sampling)
        assert tokens_of(events, one.request_id) == expected
    statistics = engine.statistics()
    assert statistics.preemptions > 0
    assert statistics.swapped_bytes > 0
    # Nothing is recomputed: every token but the last of each request was computed once.
    assert statistics.computed_tokens == sum(6 + 20 - 1 for _ in asked)
    ends = [e.request_id for e in events if isinstance(e, TokenOut) and e.is_last]
    assert ends == sorted(ends)


def test_prefill_exports_blocks_states_and_tail_and_decode_goes_on_from_them() -> None:
    asked = request("a", 27, max_tokens=10)
    expected = expected_tokens(asked.token_ids, asked.sampling)
    prefill, runner = make_engine(role=EngineRole.PREFILL)
    export = InMemoryExport(BLOCK, state_every_blocks=2)
    prefill.add(
        EngineRequest(
            request_id="a",
            token_ids=asked.token_ids,
            sampling=asked.sampling,
            export=export,
            stop_after_first=True,
        )
    )
    events = drain(prefill)
    (first,) = [e for e in events if isinstance(e, TokenOut)]
    assert first.is_last
    assert first.finish_reason is None
    assert first.token_id == expected[0]
    assert sorted(export.blocks) == list(range(27 // BLOCK))
    assert sorted(export.states) == [8, 16, 24]
    assert [plan.num_tokens for plan in runner.plans] == [8, 8, 8, 3]

    decode, runner = make_engine(role=EngineRole.DECODE)
    decode.add(
        EngineRequest(
            request_id="a",
            token_ids=(*asked.token_ids, first.token_id),
            num_generated=1,
            sampling=asked.sampling,
            image=export.image(),
        )
    )
    events = drain(decode)
    assert tokens_of(events, "a") == expected[1:]
    assert [e.number for e in events if isinstance(e, TokenOut)] == list(range(2, 11))
    assert all(plan.kind is StepKind.DECODE for plan in runner.plans)
    assert decode.statistics().computed_tokens == len(expected) - 1


@pytest.mark.parametrize("end", [8, 16, 24])
def test_a_stored_prefix_is_resumed_and_its_blocks_are_not_exported_again(end: int) -> None:
    asked = request("a", 27, max_tokens=1)
    first = InMemoryExport(BLOCK, state_every_blocks=2)
    second = InMemoryExport(BLOCK)
    engine, runner = make_engine(role=EngineRole.PREFILL)
    for image, export in ((None, first), (end, second)):
        engine.add(
            EngineRequest(
                request_id="a",
                token_ids=asked.token_ids,
                sampling=asked.sampling,
                image=first.prefix_image(image) if image else None,
                export=export,
                stop_after_first=True,
            )
        )
        events = drain(engine)
        assert tokens_of(events, "a") == expected_tokens(asked.token_ids, asked.sampling)
    assert runner.plans[-1].sequences[0].end == 27
    assert sorted(second.blocks) == list(range(end // BLOCK, 27 // BLOCK))
    assert {idx: first.blocks[idx] for idx in second.blocks} == second.blocks
    assert second.tail == first.tail


def test_decode_computes_several_missing_tokens_within_the_budget() -> None:
    asked = request("a", 30, max_tokens=6)
    other = request("b", 2, max_tokens=30)
    engine, runner = make_engine(role=EngineRole.DECODE, max_num_batched_tokens=8)
    engine.add(other)
    engine.add(asked)
    events = drain(engine)
    for one in (asked, other):
        expected = expected_tokens(one.token_ids, one.sampling)
        assert tokens_of(events, one.request_id) == expected
    assert max(plan.num_tokens for plan in runner.plans) == 8
    # The neighbour decodes in every step meanwhile.
    assert all(
        any(step.request_id == "b" and step.sample for step in plan.sequences)
        for plan in runner.plans[1:20]
    )


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    engine, runner = make_engine()
    engine.add(request("a", 5, max_tokens=max_tokens))
    events = drain(engine)
    if max_tokens == 0:
        (event,) = events
        assert event == RequestFinished(request_id="a", finish_reason="length", num_generated=0)
        assert runner.plans == []
    else:
        assert len(tokens_of(events, "a")) == max_tokens
        assert isinstance(events[-1], TokenOut)
        assert events[-1].finish_reason == "length"


def test_first_token_may_be_a_stop_token() -> None:
    asked = request("a", 5)
    first = expected_tokens(asked.token_ids, asked.sampling)[0]
    engine, _ = make_engine()
    engine.add(request("a", 5, stop_token_ids=(first,)))
    (event,) = drain(engine)
    assert isinstance(event, TokenOut)
    assert (event.token_id, event.finish_reason, event.number) == (first, "stop", 1)


def find_eos_prompt() -> tuple[int, list[int]]:
    for salt in range(400):
        sampling = SamplingParams(max_tokens=30, temperature=0.0)
        tokens = expected_tokens(prompt_of(5, salt), sampling)
        if tokens[-1] == EOS and 2 <= len(tokens) < 20:
            return salt, tokens
    raise AssertionError("no prompt of the toy model stops")


def test_eos_stops_unless_it_is_ignored_or_comes_too_early() -> None:
    salt, stopped = find_eos_prompt()
    for options in ({}, {"ignore_eos": True}, {"min_tokens": len(stopped) + 2}):
        engine, _ = make_engine()
        asked = request("a", 5, salt, **{"ignore_eos": False, "max_tokens": 30, **options})
        engine.add(asked)
        events = drain(engine)
        tokens = tokens_of(events, "a")
        assert tokens == expected_tokens(asked.token_ids, asked.sampling)
        if not options:
            assert tokens == stopped
            assert isinstance(events[-1], TokenOut)
            assert events[-1].finish_reason == "stop"
        elif "ignore_eos" in options:
            assert tokens[: len(stopped)] == stopped
            assert len(tokens) == 30
        else:
            assert EOS not in tokens[: len(stopped) + 2]
            assert len(tokens) > len(stopped)


def test_the_context_ends_a_generation() -> None:
    engine, _ = make_engine(context=20)
    engine.add(request("a", 17, max_tokens=100))
    events = drain(engine)
    assert len(tokens_of(events, "a")) == 3
    assert isinstance(events[-1], TokenOut)
    assert events[-1].finish_reason == "length"


def test_a_resumed_generation_that_is_complete_ends_at_once() -> None:
    engine, runner = make_engine(context=20)
    for sampling, length in (
        (SamplingParams(max_tokens=3), 8),
        (SamplingParams(max_tokens=99), 20),
    ):
        engine.add(
            EngineRequest(
                request_id="a", token_ids=prompt_of(length), num_generated=3, sampling=sampling
            )
        )
        (event,) = drain(engine)
        assert event == RequestFinished(request_id="a", finish_reason="length", num_generated=3)
    assert runner.plans == []


def test_what_can_never_fit_is_refused_and_the_rest_is_not() -> None:
    engine, _ = make_engine(num_pages=6)  # five usable pages: 20 tokens
    with pytest.raises(PoolFull, match="21 tokens of KV, but the pool holds 20"):
        engine.add(request("a", 10, max_tokens=12))
    engine.add(request("a", 10, max_tokens=11))
    assert len(tokens_of(drain(engine), "a")) == 11


def test_abort_frees_at_once_in_every_state() -> None:
    for num_steps in range(12):
        engine, _ = make_engine(num_pages=12)
        for i in range(4):
            engine.add(request(f"r{i}", 9, i, max_tokens=20))
        for _ in range(num_steps):
            engine.step()
        for i in range(4):
            assert engine.abort(f"r{i}")
            assert not engine.abort(f"r{i}")
            engine.check_integrity()
        assert_empty(engine.statistics())
        events = drain(engine)
        assert {e.finish_reason for e in events if isinstance(e, RequestFinished)} == {"abort"}
        assert len(events) == 4


def test_errors_of_one_request_leave_its_neighbours_alone() -> None:
    broken = ValueError("the image has 3 bytes, the layout wants 16")
    engine, runner = make_engine()
    runner.bad_rows = {"nan"}
    good = request("good", 9, max_tokens=10)
    engine.add(request("nan", 5))
    engine.add(good)

    class Refusing(InMemoryExport):
        def save_tail(self, num_tokens: int, partial: bytes, state: bytes) -> None:
            raise broken

    engine.add(EngineRequest(request_id="export", token_ids=prompt_of(6), export=Refusing(BLOCK)))
    events = drain(engine)
    failed = {e.request_id: e.error for e in events if isinstance(e, RequestFailed)}
    assert set(failed) == {"nan", "export"}
    assert failed["export"] is broken
    assert "nan" in str(failed["nan"])
    assert tokens_of(events, "good") == expected_tokens(good.token_ids, good.sampling)
    assert engine.statistics().failed_requests == 2


def test_a_failed_import_fails_the_request_and_the_step_still_runs() -> None:
    export = InMemoryExport(BLOCK)
    engine, runner = make_engine()
    engine.add(EngineRequest(request_id="a", token_ids=prompt_of(6), export=export))
    drain(engine)
    runner.fail_import = ValueError("wrong length")
    num_plans = len(runner.plans)
    engine.add(EngineRequest(request_id="b", token_ids=(*prompt_of(6), 3), image=export.image()))
    (event,) = drain(engine)
    assert isinstance(event, RequestFailed)
    assert event.error is runner.fail_import
    (plan,) = runner.plans[num_plans:]
    assert plan.is_placeholder


def test_an_error_of_the_forward_pass_fails_the_engine_by_name() -> None:
    engine, runner = make_engine()
    engine.add(request("a"))
    runner.fail_run = RuntimeError("device lost")
    with pytest.raises(EngineFailed, match="rank 0 of 1 failed at step 1: RuntimeError: device"):
        engine.step()
    with pytest.raises(EngineFailed, match="failed before"):
        engine.step()


def test_a_local_planning_error_still_runs_the_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runner = make_engine()
    engine.add(request("a"))

    def broken(kind: StepKind, *, max_rows: int | None = None) -> None:
        raise ArithmeticError("a bug of ours")

    monkeypatch.setattr(engine._scheduler, "schedule", broken)
    with pytest.raises(EngineFailed, match="a bug of ours"):
        engine.step()
    (plan,) = runner.plans
    assert plan.is_placeholder
