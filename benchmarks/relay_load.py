"""The load of the relay benchmark: closed-loop streams over HTTP or gRPC, with little in between.

The HTTP side is written on bare sockets: a client library would cost as much as what is measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import grpc.aio

from disagg.v1 import generation_pb2, generation_pb2_grpc

MODEL = "tiny-v4"
PROMPT = [0, 300, 301, 302]
TEXT = "ROMEO: speak"  # some routers take no token ids
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


class Asker(Protocol):
    """One stream of requests."""

    async def ask(self) -> tuple[int, float]:
        """Sends one request; returns its chunks and the time of the first."""
        ...

    def close(self) -> None:
        """Closes its connection."""
        ...


async def run(
    make: Callable[[], Asker], *, streams: int, requests: int, spread_s: float = 0.0
) -> Load:
    """Keeps so many streams busy until each has had so many answers.

    Args:
        spread_s: The streams begin one after the other over this time; together, they would ask in
            bursts for ever.
    """
    load = Load()
    askers = [make() for _ in range(streams)]

    async def one(asker: Asker, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for _ in range(requests):
            begin = time.perf_counter()
            async with asyncio.timeout(_BOUND_S):
                chunks, first = await asker.ask()
            load.latencies.append(time.perf_counter() - begin)
            load.first.append(first - begin)
            load.chunks += chunks

    begin = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for number, asker in enumerate(askers):
                group.create_task(one(asker, spread_s * number / streams))
    finally:
        for asker in askers:
            asker.close()
    load.wall = time.perf_counter() - begin
    return load


class HttpAsker:
    """Streamed completions over one connection that is kept."""

    def __init__(self, address: str, *, tokens: int, gap_us: int) -> None:
        self._address = address
        self._tokens = tokens
        body = json.dumps(
            {
                "model": MODEL,
                "prompt": TEXT,
                "max_tokens": tokens,
                "seed": gap_us,
                "stream": True,
                "ignore_eos": True,
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> tuple[int, float]:
        """See `Asker.ask`; raises RuntimeError if the answer is an error or incomplete."""
        if self._connection is None or self._connection[0].at_eof():
            self.close()
            host, port = self._address.rsplit(":", 1)
            self._connection = await asyncio.open_connection(host, int(port))
        reader, writer = self._connection
        writer.write(self._request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{self._address} answered {answer[:200]!r}")
        data, first = b"", 0.0
        while b"data: [DONE]" not in data or not data.endswith(b"0\r\n\r\n"):
            piece = await reader.read(1 << 16)
            if not piece:
                break
            first = first or time.perf_counter()
            data += piece
        # Ours ends with an event of its own; what counts are tokens, the same for everybody.
        if b"[DONE]" not in data or data.count(b"data: {") < self._tokens:
            raise RuntimeError(f"{self._address} broke off after {data[-200:]!r}")
        return self._tokens, first

    def close(self) -> None:
        """See `Asker.close`."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


class GrpcAsker:
    """Streams of the native API; the channel is the caller's."""

    def __init__(self, channel: grpc.aio.Channel, *, tokens: int, gap_us: int) -> None:
        self._stub = generation_pb2_grpc.GenerationServiceStub(channel)
        self._request = generation_pb2.GenerateRequest(
            token_ids=generation_pb2.TokenIds(ids=PROMPT),
            sampling={"max_tokens": tokens, "seed": gap_us, "ignore_eos": True},
        )

    async def ask(self) -> tuple[int, float]:
        """See `Asker.ask`."""
        count, first = 0, 0.0
        async for message in self._stub.Generate(self._request, timeout=_BOUND_S):
            first = first or time.perf_counter()
            count += len(message.token_ids)
        return count, first

    def close(self) -> None:
        """Nothing of its own to close."""
