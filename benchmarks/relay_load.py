"""The load of the relay benchmark: closed-loop streams over HTTP or gRPC, with little in between.

The HTTP side is written on bare sockets: a client library would cost as much as what is measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc.aio

from disagg.v1 import generation_pb2, generation_pb2_grpc

MODEL = "tiny-v4"
PROMPT = [0, 300, 301, 302]
_BOUND_S = 60.0


@dataclass
class Load:
    """What one run saw; times in seconds.

    Attributes:
        wall: From the first request to the last answer.
        chunks: Pieces with a token, of all answers.
        latencies: One per request, until its end.
        first: One per request, until its first piece.
    """

    wall: float = 0.0
    chunks: int = 0
    latencies: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)


Ask = Callable[[], Awaitable[tuple[int, float]]]
"""Sends one request; returns its chunks and the time of the first."""


async def run(make_ask: Callable[[], Awaitable[Ask]], *, streams: int, requests: int) -> Load:
    """Keeps so many streams busy until each has had so many answers."""
    load = Load()
    asks = [await make_ask() for _ in range(streams)]

    async def one(ask: Ask) -> None:
        for _ in range(requests):
            begin = time.perf_counter()
            async with asyncio.timeout(_BOUND_S):
                chunks, first = await ask()
            load.latencies.append(time.perf_counter() - begin)
            load.first.append(first - begin)
            load.chunks += chunks

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for ask in asks:
            group.create_task(one(ask))
    load.wall = time.perf_counter() - begin
    return load


async def http_ask(address: str, *, tokens: int, gap_us: int) -> Ask:
    """Streams of completions over one connection that is kept."""
    host, port = address.rsplit(":", 1)
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": PROMPT,
            "max_tokens": tokens,
            "seed": gap_us,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    reader, writer = await asyncio.open_connection(host, int(port))

    async def ask() -> tuple[int, float]:
        nonlocal reader, writer
        if reader.at_eof():
            writer.close()
            reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{address} answered {answer[:200]!r}")
        data, first = b"", 0.0
        while b"data: [DONE]" not in data or not data.endswith(b"0\r\n\r\n"):
            piece = await reader.read(1 << 16)
            if not piece:
                break
            first = first or time.perf_counter()
            data += piece
        # Ours ends with an event of its own; what counts are tokens, the same for everybody.
        if b"[DONE]" not in data or data.count(b"data: {") < tokens:
            raise RuntimeError(f"{address} broke off after {data[-200:]!r}")
        return tokens, first

    return ask


async def grpc_ask(channel: grpc.aio.Channel, *, tokens: int, gap_us: int) -> Ask:
    """Streams of the native API."""
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    request = generation_pb2.GenerateRequest(
        token_ids=generation_pb2.TokenIds(ids=PROMPT),
        sampling={"max_tokens": tokens, "seed": gap_us, "ignore_eos": True},
    )

    async def ask() -> tuple[int, float]:
        count, first = 0, 0.0
        async for message in stub.Generate(request, timeout=_BOUND_S):
            first = first or time.perf_counter()
            count += len(message.token_ids)
        return count, first

    return ask
