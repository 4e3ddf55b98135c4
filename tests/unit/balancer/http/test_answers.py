"""The JSON of answers: what the chunks hand out is what the whole answer says."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from balancer.encoding.deepseek_v4 import V4
from balancer.encoding.dsml import ToolCallParser
from balancer.http.answers import Answer, Counts, Form
from balancer.http.asked import Asked
from balancer.http.reasoning import ReasoningSplitter
from balancer.journey.request import Delta, Final, FinishReason, Logprobs, Usage
from balancer.text import TextCodec, ThinkingMarks
from tests.fakes.front_door import MODEL

CODEC = TextCodec(MODEL)
MARKS = ThinkingMarks(begin_id=5, end_id=6, end_text="")


def form(**asked: Any) -> Form:
    return Form(
        Asked(messages=(), is_stream=True, **asked),
        CODEC,
        request_id="r1",
        model="m",
        created=7,
        system_fingerprint="fp",
        reasoning_fields=("reasoning_content", "reasoning"),
    )


def answer(*, is_thinking: bool = False, echo: str = "", index: int = 0) -> Answer:
    splitter = ReasoningSplitter(MARKS, is_thinking=is_thinking)
    return Answer(index=index, prompt_ids=(1, 2, 3), splitter=splitter, echo=echo)


def delta(*pieces: str, ids: tuple[int, ...] = (), logprobs: bool = False) -> Delta:
    token_ids = ids or tuple(300 + number for number in range(len(pieces)))
    entries = tuple(Logprobs(logprob=-0.5, top=((301, -0.25),)) for _ in token_ids)
    return Delta(
        attempt=1,
        seq=len(token_ids),
        token_ids=token_ids,
        text="".join(pieces),
        pieces=pieces,
        logprobs=entries if logprobs else (),
    )


FINAL = Final(
    attempt=1,
    seq=3,
    text="!",
    finish_reason=FinishReason.STOP,
    usage=Usage(prompt_tokens=3, completion_tokens=3, cached_tokens=2),
)
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 3,
    "total_tokens": 6,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
    "prompt_cache_hit_tokens": 2,
    "prompt_cache_miss_tokens": 1,
}


def choice(chunk: dict[str, object]) -> Any:
    json.dumps(chunk, allow_nan=False)
    choices = chunk["choices"]
    assert isinstance(choices, list)
    return choices[0]


def test_a_completion_in_chunks_and_whole() -> None:
    made, one = form(is_chat=False, has_usage=True), answer()
    first = made.chunk(one, delta("a", "b"))
    assert first == {
        "id": "cmpl-r1",
        "object": "text_completion",
        "created": 7,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [{"index": 0, "finish_reason": None, "text": "ab", "logprobs": None}],
        "usage": None,
    }
    assert choice(made.chunk(one, delta("c")))["text"] == "c"
    last = choice(made.end(one, FINAL))
    assert (last["text"], last["finish_reason"]) == ("!", "stop")
    assert made.usage_chunk([one])["choices"] == []
    assert made.usage_chunk([one])["usage"] == USAGE
    whole = made.whole([one])
    assert whole["usage"] == USAGE
    assert choice(whole) == {
        "index": 0,
        "finish_reason": "stop",
        "text": "abc!",
        "logprobs": None,
    }


def test_a_chat_names_its_role_once() -> None:
    made, one = form(is_chat=True), answer()
    first = made.chunk(one, delta("a"))
    assert (first["object"], first["id"]) == ("chat.completion.chunk", "chatcmpl-r1")
    assert "usage" not in first
    assert choice(first)["delta"] == {"role": "assistant", "content": "a"}
    assert choice(made.chunk(one, delta("b")))["delta"] == {"content": "b"}
    assert choice(made.end(one, FINAL))["delta"] == {"content": "!"}
    whole = made.whole([one])
    assert whole["object"] == "chat.completion"
    assert choice(whole)["message"] == {"role": "assistant", "content": "ab!"}


def test_thoughts_have_fields_of_their_own() -> None:
    made, one = form(is_chat=True), answer(is_thinking=True)
    first = choice(made.chunk(one, delta("h", "m", ids=(300, 301))))
    assert first["delta"] == {"role": "assistant", "reasoning_content": "hm", "reasoning": "hm"}
    assert choice(made.chunk(one, delta("", "a", ids=(6, 300))))["delta"] == {"content": "a"}
    made.end(one, FINAL)
    whole = made.whole([one])
    assert choice(whole)["message"] == {
        "role": "assistant",
        "content": "a!",
        "reasoning_content": "hm",
        "reasoning": "hm",
    }
    assert one.counts.reasoning == 3


def test_logprobs_of_a_completion_are_columns() -> None:
    made, one = form(is_chat=False, logprobs=1), answer()
    ids = tuple(CODEC.encode_text("ab cd")[1:])
    pieces = tuple(CODEC.token_bytes(token).decode() for token in ids)
    made.chunk(one, delta(*pieces, ids=ids, logprobs=True))
    made.chunk(one, delta("x", ids=(301,), logprobs=True))
    made.end(one, FINAL)
    columns = choice(made.whole([one]))["logprobs"]
    other = CODEC.token_bytes(301).decode("utf-8", errors="replace")
    assert columns["tokens"] == [*pieces, other]
    assert columns["token_logprobs"] == [-0.5] * (len(ids) + 1)
    assert columns["text_offset"][0] == 0
    assert columns["text_offset"][-1] == len("ab cd")
    assert columns["top_logprobs"][0] == {other: -0.25, pieces[0]: -0.5}
    assert columns["top_logprobs"][-1] == {other: -0.25}


def test_logprobs_of_a_chat_are_entries() -> None:
    made, one = form(is_chat=True, logprobs=1), answer()
    chunk = choice(made.chunk(one, delta("x", ids=(301,), logprobs=True)))
    data = CODEC.token_bytes(301)
    entry = {"token": data.decode("utf-8", errors="replace"), "bytes": list(data)}
    assert chunk["logprobs"] == {
        "content": [{**entry, "logprob": -0.5, "top_logprobs": [{**entry, "logprob": -0.25}]}]
    }
    assert choice(made.end(one, FINAL))["logprobs"] is None
    assert choice(made.whole([one]))["logprobs"] == chunk["logprobs"]


def test_what_json_cannot_say_is_cut() -> None:
    made, one = form(is_chat=True, logprobs=0), answer()
    impossible = Delta(
        attempt=1,
        seq=1,
        token_ids=(301,),
        text="x",
        pieces=("x",),
        logprobs=(Logprobs(logprob=float("-inf")),),
    )
    assert choice(made.chunk(one, impossible))["logprobs"]["content"][0]["logprob"] == -9999.0


def test_echo_and_token_ids() -> None:
    made, one = form(is_chat=False, echo=True, token_ids=True), answer(echo="Once ")
    first = choice(made.chunk(one, delta("a")))
    assert (first["text"], first["token_ids"]) == ("Once a", (300,))
    assert first["prompt_token_ids"] == (1, 2, 3)
    assert "prompt_token_ids" not in choice(made.chunk(one, delta("b")))
    made.end(one, FINAL)
    whole = choice(made.whole([one]))
    assert (whole["text"], whole["token_ids"]) == ("Once ab!", [300, 300])


def test_running_counts_and_several_prompts() -> None:
    made = form(is_chat=False, has_running_usage=True)
    one, two = answer(), answer(index=1)
    counts = made.chunk(one, delta("a", "b"))["usage"]
    assert isinstance(counts, dict)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (3, 2)
    for item in (one, two):
        made.end(item, FINAL)
    total = made.whole([one, two])
    usage, choices = total["usage"], total["choices"]
    assert isinstance(usage, dict)
    assert isinstance(choices, list)
    assert usage["total_tokens"] == 12
    assert [item["index"] for item in choices] == [0, 1]
    assert Counts(prompt=1) + Counts(prompt=2, cached=1) == Counts(prompt=3, cached=1)


def test_calls_of_tools_are_objects_of_their_own() -> None:
    text = (
        'So\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="false">1</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    )
    call = {"id": "c_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    for size in (1, 7, len(text)):
        made, one = form(is_chat=True), answer()
        one.calls = ToolCallParser(V4, "c")
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        chunks = [choice(made.chunk(one, delta(piece)))["delta"] for piece in pieces]
        last = choice(made.end(one, dataclasses.replace(FINAL, text="")))
        told = [item for chunk in chunks for item in chunk.get("tool_calls", ())]
        assert told == [{"index": 0, **call}]
        assert "".join(chunk.get("content") or "" for chunk in chunks) == "So"
        assert last["finish_reason"] == "tool_calls"
        message = choice(made.whole([one]))["message"]
        assert (message["content"], message["tool_calls"]) == ("So", [call])


def test_an_answer_that_calls_nothing_is_text() -> None:
    made, one = form(is_chat=True), answer()
    one.calls = ToolCallParser(V4)
    first = choice(made.chunk(one, delta("a <")))["delta"]
    last = choice(made.end(one, FINAL))
    assert (first["content"], last["delta"]["content"]) == ("a ", "<!")
    assert last["finish_reason"] == "stop"
    assert choice(made.whole([one]))["message"] == {"role": "assistant", "content": "a <!"}
