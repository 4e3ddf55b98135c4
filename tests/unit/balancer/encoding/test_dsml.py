"""Calls of tools told from text, however it is cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.encoding.deepseek_v4 import V4, V41, Form, render
from balancer.encoding.dsml import ToolCallParser
from balancer.encoding.turns import ChatTurn, ToolCall

CALLS = (
    ToolCall(name="weather", arguments='{"city": "Zürich", "days": 3, "deep": {"a": [1, "x"]}}'),
    ToolCall(name="now", arguments="{}"),
)


def block(form: Form, calls: tuple[ToolCall, ...] = CALLS) -> str:
    """The calls as the encoder writes them."""
    turns = [ChatTurn(role="assistant", content="", tool_calls=calls)]
    return render(form, turns, bos="", eos="", thinking=False)


def parsed(form: Form, pieces: list[str]) -> tuple[str, list[tuple[str, object]]]:
    parser, text, calls = ToolCallParser(form), "", []
    for piece in pieces:
        more, found = parser.push(piece)
        text, calls = text + more, calls + found
    text += parser.finish()
    assert calls == parser.calls
    assert [call.id for call in calls] == [f"call_{number}" for number in range(len(calls))]
    return text, [(call.name, json.loads(call.arguments)) for call in calls]


WANTED = [(call.name, json.loads(call.arguments)) for call in CALLS]


@pytest.mark.parametrize("form", [V4, V41])
def test_every_cut_gives_the_same(form: Form) -> None:
    answer = "Let me see: 1 < 2.\n\nSo" + block(form)
    for cut in range(len(answer) + 1):
        text, calls = parsed(form, [answer[:cut], answer[cut:]])
        assert (text, calls) == ("Let me see: 1 < 2.\n\nSo", WANTED)
    assert parsed(form, list(answer)) == ("Let me see: 1 < 2.\n\nSo", WANTED)


@given(st.text(alphabet="<｜DSMLtool_cas>\\n /", max_size=40), st.integers(1, 5))
def test_text_without_calls_comes_out_as_it_went_in(text: str, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert parsed(V4, pieces) == (text, [])


def test_a_call_is_told_before_the_block_ends() -> None:
    parser = ToolCallParser(V4)
    first, _, _ = block(V4).partition(f"</{V4.invoke}>")
    assert parser.push(first) == ("", [])
    _, [call] = parser.push(f"</{V4.invoke}>")
    assert call.name == "weather"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (f"</{V4.invoke}>", ""),
        ('string="false">3', 'string="false">three'),
        ('<｜DSML｜invoke name="weather">', "<｜DSML｜invoke>"),
        ("</｜DSML｜parameter>", ""),
    ],
)
def test_what_does_not_parse_is_text(old: str, new: str) -> None:
    broken = "Hm" + block(V4, CALLS[:1]).replace(old, new)
    assert parsed(V4, list(broken)) == (broken, [])


def test_the_other_form_is_text() -> None:
    answer = block(V41)
    assert parsed(V4, [answer]) == (answer, [])


def test_a_call_that_is_cut_off_is_text_behind_those_that_are_complete() -> None:
    answer = block(V4)
    cut = answer[: answer.rindex(f"</{V4.invoke}>")]
    text, calls = parsed(V4, list(cut))
    assert calls == WANTED[:1]
    assert text.strip().startswith('<｜DSML｜invoke name="now">')
