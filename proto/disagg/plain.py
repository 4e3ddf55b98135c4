"""Wire messages as plain values, for JSON that people read."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

_ROLES = {1: "prefill", 2: "decode"}


def plain(message: Message) -> dict[str, object]:
    """A message as JSON values with the names of its fields; what is absent is null."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> object:  # Any: descriptors have two classes
    value = getattr(message, field.name)
    if field.name == "role":
        return _ROLES.get(value, "")
    if field.is_repeated:
        return [plain(item) if field.message_type else item for item in value]
    if field.message_type is not None:
        return plain(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    return value
