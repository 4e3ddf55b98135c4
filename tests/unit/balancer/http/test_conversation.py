"""Conversations of chat bodies: turns, tools, thinking."""

from __future__ import annotations

import json
from typing import Any

import pytest

from balancer.http.conversation import read_turns
from balancer.http.fields import Fields
from disagg.v1 import generation_pb2
from runtime.errors import InvalidRequest, Reason


def chat(**body: Any) -> generation_pb2.ChatPrompt:
    return read_turns(Fields({"messages": [{"role": "user", "content": "Hi"}], **body}))


def test_turns() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
    ]
    turns = chat(messages=messages).messages
    assert [(t.role, t.content) for t in turns] == [
        ("system", "Be brief."),
        ("user", "a\nb"),
        ("assistant", ""),
    ]
    assert turns[2].reasoning == "hm"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages: there are none"),
        ("Hi", "is not a list"),
        (["Hi"], r"messages\[0\]: \"Hi\" is not an object"),
        ([{"role": "function", "content": "x"}], "is long gone"),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c"}]}],
            r"messages\[0\].tool_calls\[0\].function: there is none",
        ),
        ([{"role": "user", "content": 3}], r"messages\[0\].content: 3 is not a string"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r'messages\[0\].content\[0\].type: "image_url": only text',
        ),
    ],
)
def test_conversations_that_are_none(messages: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        chat(messages=messages)


@pytest.mark.parametrize(
    ("body", "thinking", "effort"),
    [
        ({}, None, ""),
        ({"thinking": {"type": "enabled"}}, True, "high"),
        ({"thinking": {"type": "disabled"}}, False, ""),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True, "high"),
        ({"chat_template_kwargs": {"thinking": False, "reasoning_effort": "ultra"}}, False, "max"),
        (
            {"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": False}},
            True,
            "high",
        ),
        ({"reasoning_effort": "medium"}, None, "high"),
        ({"reasoning_effort": "minimal"}, None, "low"),
        ({"reasoning_effort": "none"}, False, ""),
        ({"reasoning_effort": 42}, None, "42"),
    ],
)
def test_the_switch_for_thinking(body: dict[str, Any], thinking: bool | None, effort: str) -> None:
    prompt = chat(**body)
    assert (prompt.thinking if prompt.HasField("thinking") else None) == thinking
    assert prompt.reasoning_effort == effort


def test_switches_that_are_none() -> None:
    with pytest.raises(InvalidRequest, match=r'thinking\.type: "maybe": send "enabled"'):
        chat(thinking={"type": "maybe"})
    with pytest.raises(InvalidRequest, match='reasoning_effort: "much": send one of none'):
        chat(reasoning_effort="much")
    with pytest.raises(InvalidRequest, match="reasoning_effort: 101 is out of range"):
        chat(reasoning_effort=101)


WEATHER = {"name": "weather", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": WEATHER}


def test_tools_reach_the_model_unless_it_may_not_call_them() -> None:
    [tool] = chat(tools=[TOOL]).tools
    assert json.loads(tool) == WEATHER
    assert list(chat(tools=[TOOL], tool_choice="none").tools) == []
    assert len(chat(tools=[TOOL, TOOL], tool_choice="auto").tools) == 2


def test_calls_and_their_results_are_turns() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = chat(
        messages=[
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ]
    ).messages
    [found] = turns[0].tool_calls
    assert (found.id, found.name, found.arguments, turns[0].reasoning) == (
        *("c1", "weather", "{}", "hm"),
    )
    assert (turns[1].role, turns[1].tool_call_id, turns[1].content) == ("tool", "c1", "sunny")


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", Reason.UNSUPPORTED_PARAMETER),
        ({"tools": [{"type": "function"}]}, "tools[0].function", Reason.BAD_REQUEST),
        ({"tools": [TOOL] * 129}, "tools", Reason.BAD_REQUEST),
        ({"tool_choice": "required"}, "tool_choice", Reason.UNSUPPORTED_PARAMETER),
        ({"tool_choice": {"type": "function"}}, "tool_choice", Reason.UNSUPPORTED_PARAMETER),
    ],
)
def test_tools_that_cannot_be_given(body: dict[str, Any], field: str, reason: Reason) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**body)
    assert caught.value.reason is reason
    assert caught.value.violations[0].field == field
