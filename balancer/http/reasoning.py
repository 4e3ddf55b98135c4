"""Tells what a model thinks from what it answers, token by token, in a stream. Pure.

Thinking ends with the end token. Where that is a special token it has no text and its id tells;
where it is an ordinary one, its text is looked for, and what may be its beginning is held back so
that no part of it reaches the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from balancer.text import ThinkingMarks


class ReasoningSplitter:
    """Splits one answer.

    Args:
        marks: Of the model; None: nothing is ever split.
        is_thinking: Whether the answer begins inside of the thinking, as its prompt says.
    """

    def __init__(self, marks: ThinkingMarks | None, *, is_thinking: bool) -> None:
        self._marks = marks
        self._is_thinking = is_thinking and marks is not None
        self._held = ""
        self.num_tokens = 0

    def push(self, token_ids: Sequence[int], pieces: Sequence[str]) -> tuple[str, str]:
        """Returns what was thought and what was answered with these tokens."""
        thought, answered = "", ""
        for token_id, piece in zip(token_ids, pieces, strict=True):
            if not self._is_thinking or self._marks is None:
                answered += piece
                continue
            self.num_tokens += 1
            if self._marks.end_text:
                more, rest = self._look_for(self._marks.end_text, piece)
                thought, answered = thought + more, answered + rest
            else:
                thought += piece
                self._is_thinking = token_id != self._marks.end_id
        return thought, answered

    def finish(self, tail: str) -> tuple[str, str]:
        """The same for text that came at the end without tokens, and for what was held back."""
        held, self._held = self._held, ""
        return (held + tail, "") if self._is_thinking else (held, tail)

    def _look_for(self, end: str, piece: str) -> tuple[str, str]:
        text, self._held = self._held + piece, ""
        before, found, after = text.partition(end)
        if found:
            self._is_thinking = False
            return before, after
        keep = next(
            (n for n in range(min(len(text), len(end) - 1), 0, -1) if end.startswith(text[-n:])), 0
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""
