"""Turns of a conversation, whatever form they get. Pure."""

from __future__ import annotations

from dataclasses import dataclass

CHAT_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function that the model called.

    Attributes:
        id: By which its result is named; may be empty.
        arguments: A JSON object.
    """

    id: str = ""
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One turn of a conversation.

    Attributes:
        reasoning: What the model thought before it said `content`.
        tool_calls: What it called after that.
        tool_call_id: Whose result `content` is, for the role tool.
    """

    role: str
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
