"""Text to token ids and back: the only place of the system that knows text."""

from balancer.encoding.turns import CHAT_ROLES, ChatTurn, ToolCall
from balancer.text.codec import TextCodec
from balancer.text.pieces import IncrementalText
from balancer.text.stops import StopStrings
from balancer.text.terms import (
    ModelCard,
    ModelFilesError,
    TextError,
    ThinkingMarks,
)

__all__ = [
    "CHAT_ROLES",
    "ChatTurn",
    "IncrementalText",
    "ModelCard",
    "ModelFilesError",
    "StopStrings",
    "TextCodec",
    "TextError",
    "ThinkingMarks",
    "ToolCall",
]
