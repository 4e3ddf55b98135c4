"""Thoughts and answers are told apart, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.http.reasoning import ReasoningSplitter
from balancer.text import ThinkingMarks

SPECIAL = ThinkingMarks(begin_id=5, end_id=6, end_text="")
PLAIN = ThinkingMarks(begin_id=5, end_id=6, end_text="</think>")


def split(
    marks: ThinkingMarks | None, tokens: list[tuple[int, str]], *, is_thinking: bool = True
) -> tuple[str, str, int]:
    splitter = ReasoningSplitter(marks, is_thinking=is_thinking)
    thought = answered = ""
    for token_id, piece in tokens:
        more, rest = splitter.push([token_id], [piece])
        thought, answered = thought + more, answered + rest
    more, rest = splitter.finish("!")
    return thought + more, answered + rest, splitter.num_tokens


def test_a_special_token_ends_it() -> None:
    tokens = [(9, "a"), (9, "b"), (6, ""), (9, "c")]
    assert split(SPECIAL, tokens) == ("ab", "c!", 3)


def test_text_ends_it_and_leaves_no_trace() -> None:
    tokens = [(9, "a<"), (9, "b</"), (6, "think>c"), (9, "</think>")]
    assert split(PLAIN, tokens) == ("a<b", "c</think>!", 3)


def test_thinking_that_never_ends() -> None:
    assert split(PLAIN, [(9, "a</thi")]) == ("a</thi!", "", 1)


@pytest.mark.parametrize("marks", [None, SPECIAL])
def test_nothing_is_split_without_thinking(marks: ThinkingMarks | None) -> None:
    tokens = [(9, "a"), (6, "b")]
    assert split(marks, tokens, is_thinking=marks is None) == ("", "ab!", 0)


@given(st.text(alphabet="<>/think ab"), st.text(alphabet="<>/think ab"), st.data())
def test_every_cut_gives_the_same(thought: str, answered: str, data: st.DataObject) -> None:
    text = thought.replace("</think>", "") + "</think>" + answered
    before, _, after = text.partition("</think>")
    tokens, rest = [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        tokens.append((9, rest[:size]))
        rest = rest[size:]
    found = split(PLAIN, tokens)
    assert found[:2] == (before, after + "!")
