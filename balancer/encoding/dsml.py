"""Tool calls in the answer of a DeepSeek-V4, told from its text as it comes. Pure.

    text blank line <calls>
    <invoke name="f">
    <parameter name="p" string="true">raw text</parameter>
    <parameter name="n" string="false">JSON</parameter>
    </invoke> ...
    </calls>

A call is handed out when it is complete. Text that may be the beginning of the block is held back,
so that no part of the markup reaches the answer however it was cut into pieces. What does not parse
is text after all: nothing is invented, and nothing is lost.
"""

from __future__ import annotations

import json
import re

from balancer.encoding.deepseek_v4 import Form
from balancer.encoding.turns import ToolCall


class ToolCallParser:
    """Splits one answer.

    Args:
        form: Names of the elements.
        call_id: Ids of calls are this and their number.
    """

    def __init__(self, form: Form, call_id: str = "call") -> None:
        self._form = form
        self._call_id = call_id
        self._open, self._close = f"<{form.calls}>", f"</{form.calls}>"
        self._end_invoke = f"</{form.invoke}>"
        self._invoke = re.compile(
            rf'\s*<{re.escape(form.invoke)} name="([^"]+)">(.*){re.escape(self._end_invoke)}\s*',
            re.DOTALL,
        )
        self._parameter = re.compile(
            rf'\s*<{re.escape(form.parameter)} name="([^"]+)" string="(true|false)">(.*?)'
            rf"</{re.escape(form.parameter)}>",
            re.DOTALL,
        )
        self._held = self._gap = ""
        self._is_inside = False
        self.calls: list[ToolCall] = []

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """Returns the text that is certainly none, and the calls that became complete."""
        self._held += text
        out = "" if self._is_inside else self._text_before()
        return out, self._complete_calls() if self._is_inside else []

    def finish(self) -> str:
        """What was held back and is no call; a call that was cut off is text."""
        held, self._held = self._held, ""
        if self.calls:
            held = held.replace(self._close, "", 1)
            return held if held.strip() else ""
        return self._gap + held

    def _text_before(self) -> str:
        before, found, after = self._held.partition(self._open)
        if found:
            self._is_inside = True
            text = before.removesuffix("\n\n")
            # Kept whole as long as no call of it was complete.
            self._gap, self._held = before[len(text) :], found + after
            return text
        keep = _suspicious(self._held, f"\n\n{self._open}", self._open)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out

    def _complete_calls(self) -> list[ToolCall]:
        found = []
        while (end := self._held.find(self._end_invoke)) >= 0:
            end += len(self._end_invoke)
            call = self._read(self._held[:end].removeprefix(self._open))
            if call is None:
                break
            self._held = self._held[end:]
            self.calls.append(call)
            found.append(call)
        return found

    def _read(self, text: str) -> ToolCall | None:
        whole = self._invoke.fullmatch(text)
        if whole is None:
            return None
        arguments: dict[str, object] = {}
        at, inside = 0, whole[2]
        while match := self._parameter.match(inside, at):
            name, is_text, value = match.groups()
            try:
                arguments[name] = value if is_text == "true" else json.loads(value)
            except ValueError:
                return None
            at = match.end()
        if inside[at:].strip():
            return None
        return ToolCall(
            id=f"{self._call_id}_{len(self.calls)}",
            name=whole[1],
            arguments=json.dumps(arguments, ensure_ascii=False),
        )


def _suspicious(text: str, *marks: str) -> int:
    """Length of the longest end of `text` with which some mark begins."""
    longest = min(len(text), max(map(len, marks)) - 1)
    return next(
        (n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0
    )
