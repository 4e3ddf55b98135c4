"""Closed-loop streams: what is counted, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.relay_load import HttpAsker, run


class Counting:
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    async def ask(self) -> tuple[int, float]:
        self._seen.append("asked")
        return 3, 0.0

    def close(self) -> None:
        self._seen.append("closed")


async def test_every_stream_asks_so_often() -> None:
    seen: list[str] = []
    load = await run(lambda: Counting(seen), streams=4, requests=2)
    assert (load.chunks, len(load.latencies)) == (24, 8)
    assert seen == ["asked"] * 8 + ["closed"] * 4
    assert load.wall > 0


async def test_answers_that_are_none_end_the_run() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        address = "{}:{}".format(*server.sockets[0].getsockname())
        asker = HttpAsker(address, tokens=2, gap_us=0)
        with pytest.raises(RuntimeError, match="503"):
            await asker.ask()
        asker.close()
