"""Typed client of the front door; depends on the wire contract alone."""

from client.client import AsyncClient, Client
from client.errors import ClientError, InvalidArgument, StreamBroken
from client.types import ChatMessage, Chunk, Completion, Prompt, Sampling, Timing, Usage

__all__ = [
    "AsyncClient",
    "ChatMessage",
    "Chunk",
    "Client",
    "ClientError",
    "Completion",
    "InvalidArgument",
    "Prompt",
    "Sampling",
    "StreamBroken",
    "Timing",
    "Usage",
]
