"""Conversations through the chat template of a model: a program out of its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import jinja2

from balancer.encoding.turns import CHAT_ROLES, ChatTurn
from balancer.text.terms import TextError


class ChatTemplate:
    """One template.

    Args:
        program: The template, compiled.
        source: Its text: what it mentions is what it knows.
        specials: Special tokens by the names that templates use.
    """

    def __init__(self, program: jinja2.Template, source: str, specials: Mapping[str, str]) -> None:
        self._program = program
        self._may_think = "thinking" in source
        self._may_call = "tools" in source
        self._specials = dict(specials)

    def render(
        self,
        turns: Sequence[ChatTurn],
        *,
        thinking: bool | None,
        effort: str,
        tools: Sequence[str] = (),
    ) -> str:
        """The prompt of a conversation; see `TextCodec.encode_chat`.

        Raises:
            TextError: The template knows no thinking or no tools, or refuses the messages.
        """
        if thinking and not self._may_think:
            raise TextError(
                "chat.thinking",
                "the chat template of this model knows no thinking; leave it out or turn it off",
            )
        if not self._may_call and (tools or any(_is_about_tools(turn) for turn in turns)):
            raise TextError(
                "chat.tools", "the chat template of this model knows no tools; leave them out"
            )
        switches: dict[str, object] = {}
        if self._may_think and thinking is not None:
            switches |= {"thinking": thinking, "enable_thinking": thinking}
        if self._may_think and effort:
            switches["reasoning_effort"] = effort
        if tools:
            functions = [json.loads(tool) for tool in tools]
            switches["tools"] = [{"type": "function", "function": item} for item in functions]
        try:
            return self._program.render(
                messages=[_message(turn) for turn in turns],
                add_generation_prompt=True,
                **switches,
                **self._specials,
            )
        except jinja2.TemplateError as error:
            raise TextError("chat", f"the chat template refused the messages: {error}") from error


def check_turns(turns: Sequence[ChatTurn]) -> None:
    """Raises TextError for a conversation that no form could take."""
    if not turns:
        raise TextError("chat.messages", "the conversation is empty; send at least one message")
    for number, turn in enumerate(turns):
        if turn.role not in CHAT_ROLES:
            raise TextError(
                f"chat.messages[{number}].role",
                f"role {turn.role!r} is unknown; use one of {', '.join(CHAT_ROLES)}",
            )
        for index, call in enumerate(turn.tool_calls):
            if not _is_object(call.arguments):
                raise TextError(
                    f"chat.messages[{number}].tool_calls[{index}].arguments",
                    "no JSON object; send the arguments as the model gave them",
                )


def _is_about_tools(turn: ChatTurn) -> bool:
    return turn.role == "tool" or bool(turn.tool_calls)


def _message(turn: ChatTurn) -> dict[str, object]:
    """As templates expect it, with what there is alone."""
    message: dict[str, object] = {"role": turn.role, "content": turn.content}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    if turn.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in turn.tool_calls
        ]
    return message


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
