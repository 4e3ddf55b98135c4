"""Typed client of the front door; depends on the wire contract alone."""

from client.client import AsyncClient, Client
from client.decisions import Decision
from client.direct import AsyncDirectClient, DirectClient
from client.errors import ClientError, InvalidArgument, StreamBroken
from client.transport import Access
from client.types import (
    ChatMessage,
    Chunk,
    Completion,
    Prompt,
    Sampling,
    Targets,
    Timing,
    Usage,
)

__all__ = [
    "Access",
    "AsyncClient",
    "AsyncDirectClient",
    "ChatMessage",
    "Chunk",
    "Client",
    "ClientError",
    "Completion",
    "Decision",
    "DirectClient",
    "InvalidArgument",
    "Prompt",
    "Sampling",
    "StreamBroken",
    "Targets",
    "Timing",
    "Usage",
]
