"""Bodies of both endpoints: every field that is translated, ignored, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.http.asked import Asked, read_chat, read_completion
from balancer.http.fields import Fields
from runtime.errors import InvalidRequest, Reason

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def completion(**body: Any) -> Asked:
    return read_completion(Fields({"prompt": "x", **body}), max_prompts=3)


def chat(**body: Any) -> Asked:
    return read_chat(Fields({**CHAT, **body}))


def test_the_four_forms_of_a_prompt() -> None:
    assert [m.text for m in completion(prompt="a").messages] == ["a"]
    assert [m.text for m in completion(prompt=["a", "b"]).messages] == ["a", "b"]
    assert [list(m.token_ids.ids) for m in completion(prompt=[1, 2]).messages] == [[1, 2]]
    asked = completion(prompt=[[1], [2, 3]])
    assert [list(m.token_ids.ids) for m in asked.messages] == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "prompt: there is none"),
        ([], r"prompt: \[\] is neither"),
        (7, "prompt: 7 is neither"),
        (["a"] * 4, "4 prompts in one request; send at most 3"),
        (["a", 1], r"prompt\[1\]: 1 is not a string"),
        ([1, "a"], r'prompt\[1\]: "a" is not an integer'),
        ([[1], ["a"]], r"prompt\[1\]\[0\]"),
        ([1, -5], r"prompt\[1\]: -5 is out of range"),
        ("\ud800", "surrogate"),
    ],
)
def test_prompts_that_are_none(prompt: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        completion(prompt=prompt)


def test_sampling_is_translated_with_openais_defaults() -> None:
    [message] = completion().messages
    assert message.sampling.temperature == 1.0
    assert message.sampling.max_tokens == 16
    assert not message.sampling.HasField("seed")
    assert not message.sampling.HasField("top_p")
    given: dict[str, Any] = {
        "temperature": 0,
        "top_p": 0.5,
        "min_p": 0.1,
        "top_k": 7,
        "seed": -1,
        "max_tokens": 3,
        "min_tokens": 2,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "repetition_penalty": 1.5,
        "stop": ["a", "b"],
        "stop_token_ids": [4],
        "ignore_eos": True,
        "logprobs": 2,
        "priority": -3,
        "cache_salt": "tenant",
        "n": 1,
        "model": "m",
    }
    asked = completion(**given)
    [message] = asked.messages
    sampling = message.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.0, 0.5, 0.1)
    assert (sampling.top_k, sampling.seed, sampling.max_tokens) == (7, (1 << 64) - 1, 3)
    assert (sampling.min_tokens, list(sampling.stop)) == (2, ["a", "b"])
    assert (list(sampling.stop_token_ids), sampling.ignore_eos) == ([4], True)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -0.25)
    assert (sampling.repetition_penalty, sampling.logprobs, sampling.n) == (1.5, 2, 1)
    assert (message.priority, message.cache_salt, message.model) == (-3, "tenant", "m")
    assert (asked.logprobs, asked.unknown) == (2, ())
    assert completion(top_k=-1).messages[0].sampling.top_k == 0
    assert completion(n=2).messages[0].sampling.n == 2  # refused for all faces in one place


def test_limits_of_a_chat() -> None:
    assert not chat().messages[0].sampling.HasField("max_tokens")
    assert chat(max_tokens=5).messages[0].sampling.max_tokens == 5
    both = chat(max_tokens=5, max_completion_tokens=9)
    assert both.messages[0].sampling.max_tokens == 9


def test_logprobs_of_a_chat_are_a_flag_and_a_number() -> None:
    assert chat().logprobs is None
    assert chat(logprobs=False).logprobs is None
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=4).messages[0].sampling.logprobs == 4
    with pytest.raises(InvalidRequest, match="goes with logprobs = true"):
        chat(top_logprobs=4)


def test_streams() -> None:
    asked = chat(stream=True, stream_options={"include_usage": True})
    assert (asked.is_stream, asked.has_usage, asked.has_running_usage) == (True, True, False)
    asked = completion(stream=True, stream_options={"continuous_usage_stats": True})
    assert (asked.has_usage, asked.has_running_usage) == (False, True)
    with pytest.raises(InvalidRequest, match="goes with stream = true"):
        chat(stream_options={"include_usage": True})


REFUSED: list[tuple[str, object]] = [
    ("tool_choice", "required"),
    ("functions", [{}]),
    ("response_format", {"type": "json_object"}),
    ("logit_bias", {"5": 1}),
    ("modalities", ["audio"]),
    ("guided_json", {}),
    ("structured_outputs", {"regex": "a"}),
    ("include_stop_str_in_output", True),
    ("skip_special_tokens", False),
    ("truncate_prompt_tokens", 5),
    ("continue_final_message", True),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=[name for name, _ in REFUSED])
def test_known_values_without_support_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**{name: value})
    assert caught.value.reason is Reason.UNSUPPORTED_PARAMETER
    assert caught.value.violations[0].field == name


@pytest.mark.parametrize("body", [{"best_of": 2}, {"suffix": "x"}, {"echo": True, "logprobs": 1}])
def test_the_same_of_completions(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(**body)
    assert caught.value.reason is Reason.UNSUPPORTED_PARAMETER


def test_values_that_change_nothing_are_accepted() -> None:
    asked = chat(
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        logit_bias={},
        user="me",
        metadata={"a": "b"},
        parallel_tool_calls=True,
        colour="blue",
    )
    assert asked.unknown == ("colour",)


NAMES = [
    *("prompt", "messages", "model", "max_tokens", "max_completion_tokens", "temperature"),
    *("top_p", "top_k", "min_p", "n", "stop", "seed", "stream", "stream_options", "logprobs"),
    *("top_logprobs", "echo", "logit_bias", "presence_penalty", "frequency_penalty", "user"),
    *("repetition_penalty", "response_format", "tools", "tool_choice", "ignore_eos", "suffix"),
    *("min_tokens", "stop_token_ids", "priority", "request_id", "cache_salt", "best_of"),
    *("chat_template_kwargs", "thinking", "reasoning_effort", "return_token_ids", "unheard_of"),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "include_usage", "thinking"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_whatever_a_body_holds_it_is_translated_or_refused(body: dict[str, Any]) -> None:
    for read in (read_chat, lambda fields: read_completion(fields, max_prompts=3)):
        try:
            asked = read(Fields(body))
        except InvalidRequest as error:
            problem = error
        else:
            assert asked.messages
            assert set(asked.unknown) <= set(body)
            continue
        assert problem.violations
        assert problem.message
