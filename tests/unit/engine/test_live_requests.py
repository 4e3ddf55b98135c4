"""Requests from `add` to their last event: what is refused, and that an end is said once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineSettings, ModelLimits
from engine.live_requests import LiveRequests
from engine.plan import StepKind
from engine.request import (
    ChunkDone,
    DuplicateRequest,
    EngineEvent,
    EngineRequest,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    RequestFailed,
    RequestFinished,
    SamplingError,
    SamplingParams,
    SequenceStatus,
    TokenOut,
)
from engine.sampler import BadLogits, Sampled
from engine.scheduler import Scheduler
from tests.fakes.toy_engine import BLOCK, prompt_of, request

VOCAB, EOS, CONTEXT = 64, 1, 50


def make(max_waiting: int = 8) -> tuple[LiveRequests, Scheduler]:
    settings = EngineSettings(
        block_tokens=BLOCK,
        num_pages=64,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_waiting=max_waiting,
    )
    limits = ModelLimits(vocab_size=VOCAB, max_model_len=CONTEXT, eos_token_ids=(EOS,))
    scheduler = Scheduler(settings, settings.cache_size(1), CONTEXT)
    return LiveRequests(settings, limits, scheduler), scheduler


def compute(scheduler: Scheduler) -> None:
    """Takes whatever waits through a prefill step, without a runner."""
    for row in scheduler.schedule(StepKind.PREFILL).rows:
        scheduler.complete(row)


REFUSALS = [
    ({"token_ids": ()}, InvalidRequest, "empty"),
    ({"token_ids": (1, 2, VOCAB)}, InvalidRequest, r"token_ids\[2\] is 64"),
    ({"token_ids": (1, -1)}, InvalidRequest, r"token_ids\[1\] is -1"),
    ({"token_ids": (1, 2), "num_generated": 2}, InvalidRequest, "num_generated is 2"),
    ({"token_ids": prompt_of(50)}, PromptTooLong, "50 tokens.*context is 50"),
    ({"token_ids": prompt_of(51), "num_generated": 1}, PromptTooLong, "at most 50"),
    ({"sampling": SamplingParams(temperature=math.nan)}, SamplingError, "temperature is nan"),
    ({"sampling": SamplingParams(stop_token_ids=(VOCAB,))}, SamplingError, "stop_token_ids is 64"),
]


@pytest.mark.parametrize(("fields", "error", "message"), REFUSALS)
def test_bad_requests_are_refused_and_leave_nothing(
    fields: dict[str, object], error: type[Exception], message: str
) -> None:
    live, scheduler = make()
    with pytest.raises(error, match=message):
        live.add(EngineRequest(**{"request_id": "a", "token_ids": (1, 2), **fields}))  # type: ignore[arg-type]
    assert not live.has_work()
    assert scheduler.num_waiting == 0


def test_duplicates_and_full_queues_are_refused() -> None:
    live, _ = make(max_waiting=2)
    live.add(request("a"))
    with pytest.raises(DuplicateRequest, match="'a' is live"):
        live.add(request("a"))
    live.add(request("b"))
    with pytest.raises(QueueFull, match="max_waiting 2"):
        live.add(request("c"))
    assert live.abort("a")
    live.add(request("a"))
    assert len(live) == 2


def test_a_generation_that_is_complete_is_said_once_and_holds_nothing() -> None:
    live, scheduler = make()
    for number, (sampling, length) in enumerate(
        ((SamplingParams(max_tokens=3), 8), (SamplingParams(max_tokens=99), CONTEXT))
    ):
        live.add(
            EngineRequest(
                request_id=f"r{number}",
                token_ids=prompt_of(length),
                num_generated=3,
                sampling=sampling,
            )
        )
        assert len(live) == 0
        assert live.has_work()
        assert live.take_events() == [
            RequestFinished(request_id=f"r{number}", finish_reason="length", num_generated=3)
        ]
        assert not live.has_work()
    assert scheduler.num_waiting == 0


def test_an_abort_frees_at_once_and_only_what_is_live() -> None:
    live, scheduler = make()
    live.add(request("a"))
    compute(scheduler)
    assert live.abort("a")
    assert not live.abort("a")
    assert scheduler.num_running == 0
    assert live.take_events() == [
        RequestFinished(request_id="a", finish_reason="abort", num_generated=0)
    ]


def test_each_outcome_has_its_event() -> None:
    live, scheduler = make()
    live.add(request("a", 9))
    sequence = live.find("a")
    assert sequence is not None
    compute(scheduler)
    assert live.report(sequence, None) == ChunkDone(request_id="a", computed_tokens=9)
    sampled = Sampled(token_id=7, logprob=-0.5, top_logprobs=((7, -0.5),))
    assert live.report(sequence, sampled) == TokenOut(
        request_id="a",
        token_id=7,
        number=1,
        logprob=-0.5,
        top_logprobs=((7, -0.5),),
        finish_reason=None,
        is_last=False,
    )
    error = BadLogits("nan")
    assert live.report(sequence, error) == RequestFailed(request_id="a", error=error)
    assert sequence.status is SequenceStatus.FAILED
    assert (live.num_generated_tokens, live.num_failed, len(live)) == (1, 1, 0)
    assert scheduler.num_running == 0


@pytest.mark.parametrize(
    ("sampling", "token_id", "first_only", "reason", "is_last"),
    [
        ({"max_tokens": 1}, 7, False, "length", True),
        ({"stop_token_ids": (7,)}, 7, False, "stop", True),
        ({"ignore_eos": False}, EOS, False, "stop", True),
        ({}, EOS, False, None, False),
        ({}, 7, True, None, True),
    ],
)
def test_the_last_token_says_why(
    sampling: dict[str, object], token_id: int, first_only: bool, reason: str, is_last: bool
) -> None:
    live, scheduler = make()
    asked = request("a", 5, **sampling)
    live.add(
        EngineRequest(
            request_id="a",
            token_ids=asked.token_ids,
            sampling=asked.sampling,
            stop_after_first=first_only,
        )
    )
    compute(scheduler)
    sequence = live.find("a")
    assert sequence is not None
    event = live.report(sequence, Sampled(token_id=token_id))
    assert isinstance(event, TokenOut)
    assert (event.finish_reason, event.is_last) == (reason, is_last)
    assert (live.find("a") is None) is is_last


def test_the_sampler_is_told_the_position_and_what_is_banned() -> None:
    live, _ = make()
    live.add(request("a", 5, ignore_eos=False, min_tokens=1))
    sequence = live.find("a")
    assert sequence is not None
    row = live.sample_row(sequence)
    assert (row.position, row.num_prompt, row.banned_token_ids) == (5, 5, (EOS,))
    live.report(sequence, Sampled(token_id=7))
    row = live.sample_row(sequence)
    assert (row.position, row.num_prompt, row.banned_token_ids) == (6, 5, ())


def is_last(event: EngineEvent) -> bool:
    return isinstance(event, RequestFinished | RequestFailed) or (
        isinstance(event, TokenOut) and event.is_last
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "abort", "token", "fail"]), st.sampled_from("abc")),
        max_size=25,
    )
)
def test_every_request_has_one_last_event_and_is_known_until_then(
    moves: list[tuple[str, str]],
) -> None:
    live, scheduler = make()
    events: list[EngineEvent] = []
    added: dict[str, int] = dict.fromkeys("abc", 0)
    for move, name in moves:
        sequence = live.find(name)
        if move == "add" and sequence is None:
            live.add(request(name, 5, max_tokens=2))
            added[name] += 1
        elif move == "abort":
            assert live.abort(name) is (sequence is not None)
        elif sequence is not None:
            compute(scheduler)
            outcome = Sampled(token_id=7) if move == "token" else BadLogits("nan")
            events.append(live.report(sequence, outcome))
        events += live.take_events()
        ended = [event.request_id for event in events if is_last(event)]
        for one, count in added.items():
            assert ended.count(one) == count - (live.find(one) is not None)
        assert scheduler.num_running + scheduler.num_waiting == len(live)
        scheduler.check_integrity()
