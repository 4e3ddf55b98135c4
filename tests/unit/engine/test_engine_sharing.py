"""LLMEngine with the toy runner: when it steps, how requests share it, what it lets go."""

from __future__ import annotations

import dataclasses
import gc
import weakref

from engine.kv_connector import InMemoryExport
from engine.plan import StepKind
from engine.request import (
    EngineRequest,
    SamplingParams,
    TokenOut,
)
from engine.statistics import ExpertMoves
from tests.fakes.toy_engine import (
    BLOCK,
    drain,
    make_engine,
    prompt_of,
    request,
    tokens_of,
)
from tests.fakes.toy_runner import expected_tokens


def test_an_idle_engine_runs_nothing() -> None:
    engine, runner = make_engine()
    decision, events = engine.step()
    assert decision.idle
    assert events == []
    assert runner.plans == []


def test_prefill_waits_for_the_interval_while_others_decode() -> None:
    engine, runner = make_engine(prefill_attempt_interval=4)
    engine.add(request("a", 5, max_tokens=30))
    engine.step()
    engine.add(request("b", 5, 1, max_tokens=3))
    drain(engine)
    kinds = [plan.kind for plan in runner.plans[:7]]
    assert kinds == [StepKind.PREFILL] + [StepKind.DECODE] * 4 + [StepKind.PREFILL, StepKind.DECODE]


def test_a_paused_sequence_keeps_its_place_and_its_memory() -> None:
    engine, _ = make_engine()
    a, b = request("a", 5, max_tokens=10), request("b", 5, 1, max_tokens=10)
    engine.add(a)
    engine.add(b)
    events = engine.step()[1]
    engine.set_paused("a", True)
    for _ in range(9):
        events += engine.step()[1]
    assert len(tokens_of(events, "a")) == 1
    assert len(tokens_of(events, "b")) == 10
    assert engine.step()[0].idle
    engine.set_paused("a", False)
    events += drain(engine)
    for one in (a, b):
        expected = expected_tokens(one.token_ids, one.sampling)
        assert tokens_of(events, one.request_id) == expected


def test_a_reservation_keeps_room_until_it_is_used_or_released() -> None:
    engine, _ = make_engine(num_pages=11)
    assert engine.try_reserve("credit", 24)  # six of ten pages
    assert engine.try_reserve("credit", 24)
    assert not engine.try_reserve("other", 24)
    engine.add(request("late", 20, max_tokens=4))
    for _ in range(5):
        engine.step()
    assert engine.statistics().running == 0
    engine.add(
        EngineRequest(
            request_id="first",
            token_ids=prompt_of(20),
            reservation_id="credit",
            sampling=SamplingParams(max_tokens=4, ignore_eos=True),
        )
    )
    events = drain(engine)
    ends = [e.request_id for e in events if isinstance(e, TokenOut) and e.is_last]
    assert ends == ["first", "late"]
    assert not engine.release_reservation("credit")
    assert engine.try_reserve("credit", 24)
    assert engine.release_reservation("credit")


def test_log_probabilities_are_reported_when_asked() -> None:
    engine, _ = make_engine()
    engine.add(request("a", 5, max_tokens=2, logprobs=3))
    events = drain(engine)
    for event in events:
        assert isinstance(event, TokenOut)
        assert event.logprob is not None
        assert len(event.top_logprobs) == 3
        assert event.top_logprobs[0] == (event.token_id, event.logprob)


class Payload(bytearray):
    """Bytes whose end of life can be seen."""


def test_the_bytes_of_an_image_are_let_go_once_they_are_on_the_device() -> None:
    export = InMemoryExport(BLOCK)
    engine, _ = make_engine()
    engine.add(EngineRequest(request_id="a", token_ids=prompt_of(6), export=export))
    drain(engine)
    image = export.image()
    payload = Payload(image.state)
    seen = weakref.ref(payload)
    engine.add(
        EngineRequest(
            request_id="b",
            token_ids=(*prompt_of(6), 3),
            image=dataclasses.replace(image, state=payload),
            sampling=SamplingParams(max_tokens=8, ignore_eos=True),
        )
    )
    del payload
    gc.collect()
    assert seen() is not None
    engine.step()
    gc.collect()
    assert seen() is None
    assert engine.statistics().running == 1


def test_a_step_tells_how_long_experts_have_been_where_they_are() -> None:
    engine, _ = make_engine()
    before = engine.statistics()
    assert (before.steps_since_move, before.expert_moves, before.changed_slots) == (None,) * 3
    moves = iter(
        ExpertMoves(steps_since=age, moves=number, changed_slots=3 * number)
        for age, number in ((4, 0), (5, 0), (0, 1))
    )
    engine._on_step = lambda agreed: next(moves)
    engine.add(request("a", 5, max_tokens=3))
    seen = []
    while engine.has_work():
        engine.step()
        now = engine.statistics()
        seen.append((now.steps_since_move, now.expert_moves, now.changed_slots))
    assert seen == [(4, 0, 0), (5, 0, 0), (0, 1, 3)]


def test_progress_is_described_by_group_step_kind_and_vote() -> None:
    engine, _ = make_engine()
    assert engine.describe_progress() == (
        "group local, rank 0: step 0, kind none (no vote yet), last vote []"
    )
    engine.add(request("a", 5, max_tokens=3))
    engine.step()
    assert engine.describe_progress() == (
        "group local, rank 0: step 1, kind prefill (idle shortcut), "
        "last vote [1, 1, 0, 0, 0, 0, 5, 0, 0]"
    )
