"""What the parts of the text side speak of. Pure."""

from __future__ import annotations

from dataclasses import dataclass


class TextError(Exception):
    """Text cannot be encoded or decoded.

    Attributes:
        field: Part of the request that is to blame.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ModelFilesError(Exception):
    """A file of the model directory is missing or broken; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What the front door needs of a model's configuration.

    Attributes:
        vocab_size: Token ids are in [0, vocab_size).
        max_model_len: Longest context in tokens.
    """

    name: str
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingMarks:
    """The tokens around what a model thinks before it answers.

    Attributes:
        end_text: What the end token leaves in the text; empty if it is a special token.
    """

    begin_id: int
    end_id: int
    end_text: str
