"""Requests to messages, messages to pieces."""

from __future__ import annotations

from typing import Any

import pytest

from client import ChatMessage, InvalidArgument, Sampling, StreamBroken, Targets
from client.wire import Answer, completion_of, make_request
from disagg.v1 import common_pb2, generation_pb2


def make(prompt: Any, **fields: Any) -> generation_pb2.GenerateRequest:
    defaults = {
        "request_id": "r",
        "model": "",
        "sampling": None,
        "last_seq": 0,
        "cache_salt": "",
        "priority": None,
    }
    return make_request(prompt, **{**defaults, **fields})


def test_prompts_have_three_forms() -> None:
    assert make("hi").text == "hi"
    assert list(make([1, 2]).token_ids.ids) == [1, 2]
    assert make((1, 2)).WhichOneof("prompt") == "token_ids"
    assert make([]).WhichOneof("prompt") == "token_ids"
    [turn] = make([ChatMessage(role="user", content="hi")]).chat.messages
    assert (turn.role, turn.content) == ("user", "hi")
    for wrong in ([1, ChatMessage(role="user", content="x")], ["a"], [1.5]):
        with pytest.raises(TypeError, match="a prompt is"):
            make(wrong)


def test_targets_are_sent_where_they_are_given() -> None:
    assert not make("x").HasField("ttft_slo_s")
    sent = make("x", targets=Targets(ttft_s=2.5))
    assert (sent.ttft_slo_s, sent.HasField("tpot_slo_s")) == (2.5, False)
    assert make("x", targets=Targets(tpot_s=1)).tpot_slo_s == 1.0
    for wrong in (0, -1.0, float("inf"), float("nan"), "2s"):
        with pytest.raises(InvalidArgument) as caught:
            make("x", targets=Targets(tpot_s=wrong))
        assert list(caught.value.fields) == ["targets.tpot_s"]


def test_only_what_is_given_is_sent() -> None:
    assert not make("x").HasField("priority")
    assert make("x").sampling == common_pb2.SamplingParams()
    sampling = Sampling(temperature=0.0, seed=0, max_tokens=0, stop=("a",), stop_token_ids=(3,))
    sent = make("x", sampling=sampling, priority=0).sampling
    assert sent.HasField("temperature")
    assert sent.HasField("seed")
    assert sent.HasField("max_tokens")
    assert not sent.HasField("top_p")
    assert (list(sent.stop), list(sent.stop_token_ids)) == (["a"], [3])


@pytest.mark.parametrize(
    ("prompt", "fields", "field"),
    [
        ("\ud800", {}, "prompt"),
        ([1 << 32], {}, "prompt[0]"),
        ("x", {"sampling": Sampling(seed=1 << 64)}, "sampling.seed"),
        ("x", {"cache_salt": "\ud800"}, "cache_salt"),
        ("x", {"request_id": "\ud800"}, "request_id"),
        ("x", {"model": "\ud800"}, "model"),
        ("x", {"last_seq": -1}, "last_seq"),
        ("x", {"priority": 1 << 31}, "priority"),
    ],
)
def test_what_does_not_fit_on_the_wire_is_named(
    prompt: Any, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(prompt, **fields)
    assert list(caught.value.fields) == [field]


def test_the_borders_fit_on_the_wire() -> None:
    sampling = Sampling(seed=(1 << 64) - 1, max_tokens=(1 << 32) - 1, stop_token_ids=(0,))
    sent = make([0, (1 << 32) - 1], sampling=sampling, priority=-(1 << 31))
    assert sent.sampling.seed == (1 << 64) - 1
    assert list(sent.token_ids.ids) == [0, (1 << 32) - 1]


def message(seq: int, *ids: int, text: str = "", **fields: Any) -> generation_pb2.GenerateResponse:
    return generation_pb2.GenerateResponse(
        request_id="r", attempt=2, seq=seq, token_ids=ids, text=text, **fields
    )


def final() -> dict[str, Any]:
    return {
        "final": {
            "finish_reason": "FINISH_REASON_STOP",
            "usage": {"prompt_tokens": 4, "completion_tokens": 3, "cached_tokens": 1},
            "timing": {"total_us": 9, "decode_member": "d0"},
        }
    }


def test_pieces_make_an_answer() -> None:
    answer = Answer("r")
    logprob = common_pb2.PositionLogprobs(
        logprob=-1.0, top=[common_pb2.TokenLogprob(token_id=5, logprob=-0.5)]
    )
    chunks = [
        answer.take(message(1, 10, text="a", seed=7, logprobs=[logprob])),
        answer.take(message(3, 11, 12, text="b")),
    ]
    with pytest.raises(StreamBroken, match="after token 3 without a last message"):
        answer.check_end()
    chunks.append(answer.take(message(3, text="!", **final())))
    answer.check_end()
    whole = completion_of(chunks)
    assert (whole.text, whole.token_ids, whole.seed) == ("ab!", (10, 11, 12), 7)
    assert (whole.finish_reason, whole.attempts) == ("stop", 2)
    assert (whole.usage.cached_tokens, whole.timing.total_us) == (1, 9)
    assert whole.timing.decode_member == "d0"
    assert whole.logprobs[0].top == ((5, -0.5),)


@pytest.mark.parametrize(("seq", "ids"), [(3, (12,)), (1, (10,)), (2, (10, 11))])
def test_gaps_and_repetitions_break_the_stream(seq: int, ids: tuple[int, ...]) -> None:
    answer = Answer("r")
    answer.take(message(1, 10))
    with pytest.raises(StreamBroken, match="came after token 1") as caught:
        answer.take(message(seq, *ids))
    assert caught.value.last_seq == 1


def test_a_resumed_answer_goes_on_behind_the_last_token() -> None:
    answer = Answer("r", last_seq=5)
    assert answer.take(message(6, 1)).seq == 6
    assert answer.last_seq == 6
