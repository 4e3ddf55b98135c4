"""Typed client of the front door; depends on the wire contract alone."""

from client.client import AsyncClient, Client
from client.direct import AsyncDirectClient, DirectClient
from client.errors import ClientError, InvalidArgument, StreamBroken
from client.types import ChatMessage, Chunk, Completion, Prompt, Sampling, Timing, Usage

__all__ = [
    "AsyncClient",
    "AsyncDirectClient",
    "ChatMessage",
    "Chunk",
    "Client",
    "ClientError",
    "Completion",
    "DirectClient",
    "InvalidArgument",
    "Prompt",
    "Sampling",
    "StreamBroken",
    "Timing",
    "Usage",
]
