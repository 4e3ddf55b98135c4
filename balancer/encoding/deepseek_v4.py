"""Conversations of DeepSeek-V4 and V4.1, whose releases have no template: code builds the prompt.

    V4     BOS [effort] [system] turns        effort: a text, none for low
    V4.1   BOS System [effort] [system] turns effort: a number; System only if something follows

    turns  (User text Assistant think answer EOS)* User text Assistant (<think>|</think>)

What the model thought in earlier turns is left out, unless it has tools: then it needs all of it.
The functions stand behind the system text; what they gave back is part of the user's turn, in the
order of the calls. Pure; the texts below are the model's and part of what it was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from balancer.encoding.turns import ChatTurn, ToolCall

SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
DSML = "｜DSML｜"
TOKENS = (USER, ASSISTANT, THINK, END_THINK)

_HIGH = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n"
)
_MAX = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple "
    "angles and are certain that no assumption remains unchecked and no error remains "
    "undiscovered.\n\n"
)
_NUMBERED = (
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
_TOOLS = (
    "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can "
    'invoke tools by writing a "<{calls}>" block like the following:\n\n<{calls}>\n'
    '<{invoke} name="$TOOL_NAME">\n<{parameter} name="$PARAMETER_NAME" string="true|false">'
    "$PARAMETER_VALUE</{parameter}>\n...\n</{invoke}>\n"
    '<{invoke} name="$TOOL_NAME2">\n...\n</{invoke}>\n</{calls}>\n\n'
    'String parameters should be specified as is and set `string="true"`. For all other types '
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    '`string="false"`.\n\n'
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n{schemas}\n\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What differs between the two.

    Attributes:
        calls, invoke, parameter: Names of the elements of a call.
        efforts: Text before everything, by effort; the empty one is that of a caller who names
            none.
        is_numbered: Efforts are numbers from 1 to 100 as well, and system texts are marked.
    """

    calls: str
    invoke: str
    parameter: str
    efforts: Mapping[str, str]
    is_numbered: bool

    def effort_text(self, effort: str) -> str | None:
        """The text of an effort; None for one that there is not."""
        if self.is_numbered and effort.isdecimal() and 1 <= int(effort) <= 100:
            return _NUMBERED.format(int(effort))
        return self.efforts.get(effort)


V4 = Form(
    calls=f"{DSML}tool_calls",
    invoke=f"{DSML}invoke",
    parameter=f"{DSML}parameter",
    # Without an effort, as the released encoder has it by itself.
    efforts={"": "", "low": "", "high": _HIGH, "max": _MAX},
    is_numbered=False,
)
V41 = Form(
    calls=f"{DSML} calls",
    invoke=f"{DSML} invoke",
    parameter=f"{DSML} parameter",
    efforts={
        "": _NUMBERED.format(75),
        "low": _NUMBERED.format(50),
        "high": _NUMBERED.format(75),
        "max": _NUMBERED.format(100),
    },
    is_numbered=True,
)
FORMS: Mapping[str, Form] = {"deepseek_v4": V4, "deepseek_v41": V41, "deepseek_v41_text": V41}
"""By `model_type` of a config.json."""


def missing_token(
    form: Form, token_to_id: Callable[[str], int | None], *, has_tools: bool
) -> str | None:
    """A token of this form that a vocabulary lacks; None if it has them all."""
    wanted = (*TOKENS, *((SYSTEM,) if form.is_numbered else ()), *((DSML,) if has_tools else ()))
    return next((token for token in wanted if token_to_id(token) is None), None)


def render(
    form: Form,
    turns: Sequence[ChatTurn],
    *,
    bos: str,
    eos: str,
    thinking: bool,
    effort: str = "",
    tools: Sequence[str] = (),
    drop_thinking: bool = True,
) -> str:
    """The prompt of a conversation that the model should answer.

    Args:
        turns: Oldest first; arguments of calls are JSON objects.
        thinking: Whether the model thinks first.
        effort: One of `form.effort_text`; only with thinking.
        tools: Functions that may be called, as JSON objects.
        drop_thinking: Leave out what was thought before the last turn of the user; never with
            tools.
    """
    first = turns[0].content if turns and turns[0].role == "system" else None
    rest = _in_call_order(turns[1:] if first is not None else turns)
    head = (form.effort_text(effort) or "") if thinking else ""
    head += first or ""
    if tools:
        head += "\n\n" + _tools_text(form, tools)
    if form.is_numbered and (head or first is not None):
        head = SYSTEM + head
    last_user = max((i for i, turn in enumerate(rest) if _is_asking(form, turn)), default=-1)
    keeps_all = thinking and (bool(tools) or not drop_thinking)
    parts = [bos, head]
    for index, turn in enumerate(rest):
        before = rest[index - 1] if index else None
        if turn.role == "assistant":
            keeps = keeps_all or (thinking and index > last_user)
            if before is not None and _is_asking(form, before):
                parts += [ASSISTANT, THINK if keeps else END_THINK]
            parts += [turn.reasoning + END_THINK if keeps else "", turn.content]
            parts += [_calls_text(form, turn.tool_calls), eos]
        elif turn.role == "system":
            parts += [SYSTEM if form.is_numbered else "", turn.content]
        else:
            follows = before is not None and before.role in ("user", "tool")
            text = f"<tool_result>{turn.content}</tool_result>"
            parts += ["\n\n" if follows else USER, text if turn.role == "tool" else turn.content]
    if not rest or rest[-1].role != "assistant":
        parts += [ASSISTANT, THINK if thinking else END_THINK]
    return "".join(parts)


def _is_asking(form: Form, turn: ChatTurn) -> bool:
    """Whether the model answers after this turn."""
    return turn.role in ("user", "tool") or (turn.role == "system" and form.is_numbered)


def _tools_text(form: Form, tools: Sequence[str]) -> str:
    return _TOOLS.format(
        calls=form.calls,
        invoke=form.invoke,
        parameter=form.parameter,
        schemas="\n".join(_json(json.loads(tool)) for tool in tools),
    )


def _calls_text(form: Form, calls: Sequence[ToolCall]) -> str:
    if not calls:
        return ""
    texts = []
    for call in calls:
        parameters = []
        for name, value in json.loads(call.arguments or "{}").items():
            is_text = isinstance(value, str)
            parameters.append(
                f'<{form.parameter} name="{name}" string="{str(is_text).lower()}">'
                f"{value if is_text else _json(value)}</{form.parameter}>"
            )
        inside = "\n".join(parameters)
        texts.append(f'<{form.invoke} name="{call.name}">\n{inside}\n</{form.invoke}>')
    inside = "\n".join(texts)
    return f"\n\n<{form.calls}>\n{inside}\n</{form.calls}>"


def _in_call_order(turns: Sequence[ChatTurn]) -> list[ChatTurn]:
    """Results of calls in the order of the calls, each where a result stood."""
    ordered = list(turns)
    order: dict[str, int] = {}
    index = 0
    while index < len(ordered):
        turn = ordered[index]
        if turn.role == "assistant" and turn.tool_calls:
            order = {call.id: number for number, call in enumerate(turn.tool_calls) if call.id}
        end = index
        while end < len(ordered) and ordered[end].role in ("user", "tool"):
            end += 1
        places = [place for place in range(index, end) if ordered[place].role == "tool"]
        results = sorted(
            (ordered[place] for place in places), key=lambda found: order.get(found.tool_call_id, 0)
        )
        for place, result in zip(places, results, strict=True):
            ordered[place] = result
        index = max(end, index + 1)
    return ordered


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
