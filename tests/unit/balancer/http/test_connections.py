"""Connections that trickle, and calls beyond the bound: neither keeps a probe out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from balancer.config import HttpSettings
from balancer.http.connections import CallLimit
from balancer.http.server import serving
from runtime.metrics import Metrics
from runtime.security import open_security
from runtime.tls import TlsSettings
from tests.fakes.certificates import dev_certificates, tls_section

pytestmark = pytest.mark.medium
REFUSED = "disagg_http_refused_total"
HALF = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


@asynccontextmanager
async def served(**settings: float) -> AsyncIterator[tuple[str, int, Metrics]]:
    metrics = Metrics(role="balancer")
    made = HttpSettings.model_validate({"port": 0, **settings})
    async with serving(hello, made, metrics=metrics) as address:
        host, port = address.split(":")
        yield host, int(port), metrics


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


async def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    async with served(head_timeout_s=0.05) as (host, port, metrics):
        for first in (b"", HALF, HALF + b"\r\n"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(first)
            if first.endswith(b"\r\n\r\n"):  # the first was answered; the next trickles
                assert b"200" in await reader.readuntil(b"\r\n")
                await reader.readuntil(b"hello")
                writer.write(HALF)
                await reader.read(64)  # the end of the chunked answer
            assert await is_closed(reader)
            writer.close()
        assert metrics.value(REFUSED, cause="slow_head") == metrics.value(REFUSED) == 3


async def test_a_tls_handshake_that_does_not_come_is_not_waited_for() -> None:
    tls = TlsSettings.model_validate(tls_section(dev_certificates(), "tls"))
    security = open_security(tls, role="balancer", metrics=Metrics())
    settings = HttpSettings(port=0, head_timeout_s=0.05)
    async with serving(hello, settings, security) as address:
        host, port = address.split(":")
        for first in (b"", b"\x16\x03\x01\x02"):  # nothing, and the begin of a hello
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(first)
            assert await is_closed(reader)
            writer.close()


async def test_sockets_that_trickle_push_one_another_out() -> None:
    async with served(max_connections=1, head_timeout_s=60.0) as (host, port, metrics):
        opened = [await asyncio.open_connection(host, port) for _ in range(40)]
        for _, writer in opened:
            writer.write(HALF)
        async with httpx2.AsyncClient(trust_env=False) as client:
            for _ in range(3):
                assert (await client.get(f"http://{host}:{port}/")).text == "hello"
        assert await is_closed(opened[0][0])
        for _, writer in opened:
            writer.close()
        # 33 may be there: one for the call that is allowed and 32 for probes.
        assert metrics.value(REFUSED, cause="too_many_connections") == 40 + 1 - 33


async def test_calls_beyond_the_bound_are_told_to_come_later_and_probes_are_served() -> None:
    release = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await release.wait()
        await hello(scope, receive, send)

    settings, metrics = HttpSettings(port=0, max_connections=1), Metrics(role="balancer")
    async with (
        serving(slow, settings, metrics=metrics) as address,
        httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as client,
    ):
        running = asyncio.create_task(client.get("/slow"))
        for _ in range(200):
            refused = await client.get("/v1/models")
            if refused.status_code != 200:
                break
        assert metrics.value(REFUSED, cause="too_many_calls") == 1
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "http.max_connections" in refused.json()["error"]["message"]
        assert (await client.get("/health")).status_code == 200
        release.set()
        assert (await running).text == "hello"
        assert (await client.get("/v1/models")).status_code == 200


async def test_what_is_no_call_passes() -> None:
    seen: list[str] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: object) -> None:
        raise AssertionError("nothing is received or sent")

    refused: list[str] = []
    await CallLimit(app, 0, refused.append)({"type": "lifespan"}, nothing, nothing)
    assert (seen, refused) == (["lifespan"], [])
