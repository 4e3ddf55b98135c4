"""The conversation form of DeepSeek-V4 and V4.1, against prompts of the vendor's own encoder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from balancer.encoding.deepseek_v4 import DSML, FORMS, SYSTEM, V4, V41, missing_token, render
from balancer.encoding.turns import ChatTurn, ToolCall

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
CASES = json.loads((Path(__file__).parent / "data" / "prompts.json").read_text())["cases"]
HI = [ChatTurn(role="user", content="Hi")]


def turn(fields: dict[str, Any]) -> ChatTurn:
    calls = tuple(ToolCall(**call) for call in fields.get("tool_calls", ()))
    return ChatTurn(**{**fields, "tool_calls": calls})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_prompts_are_the_vendors_byte_for_byte(case: dict[str, Any]) -> None:
    text = render(
        FORMS[case["form"]],
        [turn(fields) for fields in case["turns"]],
        bos=BOS,
        eos=EOS,
        thinking=case["thinking"],
        effort=case["effort"],
        tools=case["tools"],
        drop_thinking=case["drop_thinking"],
    )
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert (len(text), digest) == (case["length"], case["sha256"]), text


@pytest.mark.parametrize(
    ("form", "thinking", "effort", "length", "digest"),
    [
        (V4, False, "", 52, "43a8b16635804295"),
        (V41, False, "", 52, "43a8b16635804295"),
        (V4, True, "low", 51, "a6fa0c69a02bebdd"),
        (V4, True, "high", 527, "1bcdbbd0c9b620fd"),
        (V4, True, "max", 577, "c373b4e8c82cedaf"),
        (V41, True, "low", 152, "a1985ac9f8739ae1"),
        (V41, True, "high", 152, "41e136346aced970"),
        (V41, True, "max", 153, "ac1cc915521edbb9"),
        (V41, True, "", 152, "41e136346aced970"),
        (V41, True, "75", 152, "41e136346aced970"),
    ],
)
def test_every_effort_is_the_vendors(
    form: Any, thinking: bool, effort: str, length: int, digest: str
) -> None:
    text = render(form, HI, bos=BOS, eos=EOS, thinking=thinking, effort=effort)
    assert (len(text), hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]) == (length, digest)


def test_efforts_that_there_are_not() -> None:
    assert V4.effort_text("75") is None
    for effort in ("0", "101", "1.5", "much"):
        assert V41.effort_text(effort) is None


def test_a_system_text_in_the_middle_is_marked_where_the_form_has_a_mark() -> None:
    turns = [*HI, ChatTurn(role="assistant", content="Yes"), ChatTurn(role="system", content="S")]
    old = render(V4, turns, bos=BOS, eos=EOS, thinking=False)
    assert old.endswith(f"Yes{EOS}S<｜Assistant｜></think>")
    new = render(V41, turns, bos=BOS, eos=EOS, thinking=False)
    assert new.endswith(f"Yes{EOS}{SYSTEM}S<｜Assistant｜></think>")


def test_the_new_form_names_its_elements_with_a_space() -> None:
    call = ToolCall(name="f", arguments='{"a": "x"}')
    turns = [*HI, ChatTurn(role="assistant", content="", tool_calls=(call,))]
    text = render(V41, turns, bos=BOS, eos=EOS, thinking=False, tools=('{"name": "f"}',))
    assert f'<{DSML} invoke name="f">\n<{DSML} parameter name="a" string="true">x' in text
    assert f"\n\n<{DSML} calls>\n" in text
    assert "tool_calls" not in text


def test_tokens_that_are_missing_are_named() -> None:
    def without(token: str) -> Any:
        return lambda asked: None if asked == token else 1

    assert missing_token(V4, without(SYSTEM), has_tools=True) is None
    assert missing_token(V41, without(SYSTEM), has_tools=False) == SYSTEM
    assert missing_token(V4, without(DSML), has_tools=False) is None
    assert missing_token(V4, without(DSML), has_tools=True) == DSML
    assert missing_token(V4, without("<think>"), has_tools=False) == "<think>"
