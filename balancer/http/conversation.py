"""The conversation of a chat body: turns, tools, thinking. Pure."""

from __future__ import annotations

import json

from balancer.http.fields import Fields, shown
from disagg.v1 import generation_pb2

_ROLES = {"developer": "system"}
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "max",
    "ultra": "max",
}
_DEFAULT_EFFORT = "high"  # of who asks for thinking and names none
_MAX_TOOLS = 128


def read_turns(fields: Fields) -> generation_pb2.ChatPrompt:
    """The conversation of a body, with its tools and its switch for thinking.

    Raises:
        InvalidRequest: A message is not one that can be encoded.
    """
    messages = fields.items("messages")
    if messages is None:
        raise fields.fault("messages", "there are none; send a list of messages")
    chat = generation_pb2.ChatPrompt()
    for number, item in enumerate(messages):
        message = fields.as_child(f"messages[{number}]", item)
        role = message.text("role") or ""
        if role == "function":
            raise message.unsupported("role", '"function" is long gone; send tool_calls and "tool"')
        turn = chat.messages.add(role=_ROLES.get(role, role), content=_content(message))
        turn.reasoning = message.text("reasoning_content") or message.text("reasoning") or ""
        turn.tool_call_id = message.text("tool_call_id") or ""
        _read_calls(message, turn)
    tools = _tools(fields)
    fields.refuse("tool_choice", allowed=("none", "auto"), way_out='send "auto", or leave it out')
    if fields.value("tool_choice") != "none":
        chat.tools.extend(tools)
    _read_thinking(fields, chat)
    return chat


def _read_calls(message: Fields, turn: generation_pb2.ChatMessage) -> None:
    for number, item in enumerate(message.items("tool_calls") or ()):
        call = message.as_child(f"tool_calls[{number}]", item)
        function = call.child("function")
        if function is None or not function.text("name"):
            raise call.fault("function", "there is none; send its name and arguments")
        turn.tool_calls.add(
            id=call.text("id") or "",
            name=function.text("name"),
            arguments=function.text("arguments") or "{}",
        )


def _tools(fields: Fields) -> list[str]:
    """Functions that may be called, as the model is told of them."""
    tools = []
    for number, item in enumerate(fields.items("tools") or ()):
        if number == _MAX_TOOLS:
            raise fields.fault("tools", f"more than {_MAX_TOOLS}; send fewer")
        tool = fields.as_child(f"tools[{number}]", item)
        if tool.text("type") != "function":
            raise tool.unsupported("type", f'{shown(tool.value("type"))}: send "function"')
        function = tool.value("function")
        named = tool.child("function")
        if named is None or not named.text("name"):
            raise tool.fault("function", "there is none with a name; send name and parameters")
        tools.append(json.dumps(function, ensure_ascii=False))
    return tools


def _content(message: Fields) -> str:
    """The text of a turn; parts of text are joined by line breaks."""
    message.ignore(("name", "refusal"))
    value = message.value("content")
    if value is None:
        return ""
    if not isinstance(value, list):
        return message.as_text("content", value)
    texts = []
    for number, item in enumerate(value):
        part = message.as_child(f"content[{number}]", item)
        if part.text("type") != "text":
            raise part.unsupported("type", f"{shown(part.value('type'))}: only text is supported")
        texts.append(part.text("text") or "")
    return "\n".join(texts)


def _read_thinking(fields: Fields, chat: generation_pb2.ChatPrompt) -> None:
    """Switch and effort of thinking; the top level wins over `chat_template_kwargs`."""
    kwargs = fields.child("chat_template_kwargs") or Fields({})
    thinking: bool | None = None
    for name in ("enable_thinking", "thinking"):
        if kwargs.has(name):
            thinking = kwargs.flag(name)
    top = fields.child("thinking")
    if top is not None:
        kind = top.text("type")
        if kind not in ("enabled", "disabled"):
            raise top.fault("type", f'{shown(kind)}: send "enabled" or "disabled"')
        thinking = kind == "enabled"
    source = fields if fields.has("reasoning_effort") else kwargs
    effort = _effort(source)
    if effort == "none":
        thinking, effort = False, ""
    elif thinking and not effort:
        effort = _DEFAULT_EFFORT
    if thinking is not None:
        chat.thinking = thinking
    chat.reasoning_effort = effort
    chat.keep_thinking = not kwargs.flag("drop_thinking", default=True)


def _effort(fields: Fields) -> str:
    value = fields.value("reasoning_effort")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(fields.integer("reasoning_effort", low=1, high=100))
    effort = fields.text("reasoning_effort") or ""
    if effort not in ("", "none", *_EFFORTS):
        names = ", ".join(_EFFORTS)
        raise fields.fault(
            "reasoning_effort", f"{shown(effort)}: send one of none, {names}, or 1 to 100"
        )
    return _EFFORTS.get(effort, effort)
