"""Conversations of DeepSeek-V4, whose releases have no template: code builds the prompt. Pure.

    BOS [system] (User text Assistant </think> answer EOS)* User text Assistant (<think>|</think>)

What the model thought in earlier turns is left out. Tools, and the texts that ask for more thinking
than `low`, are not part of this version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
TOKENS = (USER, ASSISTANT, THINK, END_THINK)
EFFORTS = ("", "low")


def speaks(token_to_id: Callable[[str], int | None]) -> bool:
    """Whether a vocabulary has the tokens of this form."""
    return all(token_to_id(token) is not None for token in TOKENS)


def render(turns: Sequence[tuple[str, str]], *, bos: str, eos: str, thinking: bool) -> str:
    """The prompt of a conversation that the model should answer.

    Args:
        turns: Role (system, user or assistant) and text of each, oldest first.
        thinking: Whether the model thinks first.
    """
    parts = [bos]
    for role, text in turns:
        match role:
            case "user":
                parts += [USER, text]
            case "assistant":
                parts += [ASSISTANT, END_THINK, text, eos]
            case _:
                parts.append(text)
    parts += [ASSISTANT, THINK if thinking else END_THINK]
    return "".join(parts)
