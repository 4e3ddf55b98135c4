"""Listening beside the gRPC server: addresses, and a stop that is bounded."""

from __future__ import annotations

import asyncio
import signal
import socket

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from balancer.config import HttpSettings
from balancer.http.server import serving
from runtime.serve import ListenError
from tests.fakes.addresses import require_ipv6

pytestmark = pytest.mark.medium


async def hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_it_serves_while_the_body_runs_and_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving(hello, HttpSettings(port=0)) as address:
        assert signal.getsignal(signal.SIGTERM) is before
        async with httpx2.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://{address}/")).text == "hello"
    host, port = address.split(":")
    with socket.socket() as probe, pytest.raises(OSError):
        probe.connect((host, int(port)))


async def test_a_taken_address_is_named() -> None:
    async with serving(hello, HttpSettings(port=0)) as address:
        port = int(address.rsplit(":", 1)[1])
        with pytest.raises(ListenError, match=f"{port}: taken.*choose another --http"):
            async with serving(hello, HttpSettings(port=port)):
                raise AssertionError("two servers share a port")


async def test_the_address_at_an_ipv6_number_is_one_that_clients_dial() -> None:
    require_ipv6()
    async with serving(hello, HttpSettings(host="::1", port=0)) as address:
        assert address.startswith("[::1]:")
        async with httpx2.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://{address}/")).text == "hello"


async def test_an_error_of_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with serving(hello, HttpSettings(port=0)):
            raise KeyError("x")


async def test_answers_that_never_end_are_cancelled_after_the_grace() -> None:
    cancelled = asyncio.Event()
    reached = asyncio.Event()

    async def stuck(_scope: Scope, _receive: Receive, _send: Send) -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with asyncio.timeout(10):
        async with serving(stuck, HttpSettings(port=0, grace_s=0.0)) as address:
            host, port = address.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reached.wait()
        await cancelled.wait()
        writer.close()
