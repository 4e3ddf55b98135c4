"""The administration of a process over a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
import pytest_asyncio

from disagg.admin import SERVICE, AdminServicer
from disagg.v1 import admin_pb2, admin_pb2_grpc


class _Process:
    """A process that only remembers whether it drains."""

    def __init__(self) -> None:
        self.is_draining = False

    async def begin_drain(self) -> None:
        self.is_draining = True

    async def end_drain(self) -> None:
        self.is_draining = False


@pytest_asyncio.fixture
async def process_and_stub() -> AsyncIterator[
    tuple[_Process, admin_pb2_grpc.AdminServiceAsyncStub]
]:
    process = _Process()
    server = grpc.aio.server()
    servicer = AdminServicer(
        role="decode",
        version="0.1.0",
        fingerprint=b"\x01\x02\x03\x04\x05\x06\x07\x08",
        begin_drain=process.begin_drain,
        end_drain=process.end_drain,
        running=lambda: 3,
        statistics=lambda: {"leases": 2.0},
    )
    admin_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield process, admin_pb2_grpc.AdminServiceStub(channel)
    await server.stop(0)


def test_the_service_is_known_by_its_full_name() -> None:
    assert SERVICE == "disagg.v1.AdminService"


async def test_drain_and_undrain(
    process_and_stub: tuple[_Process, admin_pb2_grpc.AdminServiceAsyncStub],
) -> None:
    process, stub = process_and_stub
    response = await stub.Drain(admin_pb2.DrainRequest(), timeout=5)
    assert (response.running, process.is_draining) == (3, True)
    await stub.Undrain(admin_pb2.UndrainRequest(), timeout=5)
    assert not process.is_draining


async def test_server_info(
    process_and_stub: tuple[_Process, admin_pb2_grpc.AdminServiceAsyncStub],
) -> None:
    info = await process_and_stub[1].GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=5)
    assert (info.role, info.version, info.fingerprint) == ("decode", "0.1.0", "0102030405060708")
    assert dict(info.statistics) == {"leases": 2.0}
