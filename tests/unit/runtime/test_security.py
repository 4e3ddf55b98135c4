"""Two processes over TLS: who is verified, who is let in, and health without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.certs import PEER_NAME, write_dev_certificates
from runtime.access import AuthSettings, is_guest
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from runtime.security import NO_SECURITY, Security, open_security
from runtime.serve import DrainSettings, Host, ListenSettings
from runtime.tls import TlsSettings
from tests.fakes.certificates import dev_certificates, tls_section

pytestmark = pytest.mark.medium
USERS, MEMBERS = "test.v1.UserService", "test.v1.MemberService"
DECODE = "disagg.v1.DecodeService"
KEY = "k" * 32


def security(directory: Path, mode: str = "mtls", keys: Path | None = None, **more: object):
    return open_security(
        TlsSettings.model_validate(tls_section(directory, mode, **more)),
        AuthSettings(keys_file=keys),
        role="balancer",
        metrics=Metrics(),
    )


@asynccontextmanager
async def serving(security: Security) -> AsyncIterator[Host]:
    """A host with a service of users and one of members; both echo."""
    host = Host(
        role="balancer",
        clock=SystemClock(),
        metrics=Metrics(),
        work=frozenset(),
        services=[USERS, MEMBERS],
        listen=ListenSettings(),
        drain=DrainSettings(),
        security=security,
        for_users=frozenset({USERS}),
    )

    async def echo(request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return request

    async def decode(_request: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return b"guest" if is_guest() else b"ok"

    for name in (USERS, MEMBERS, DECODE):
        handlers = {
            "Echo": grpc.unary_unary_rpc_method_handler(echo),
            "Decode": grpc.unary_unary_rpc_method_handler(decode),
        }
        host.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
    await host.start()
    try:
        yield host
    finally:
        await host.stop(0)


async def echoes(
    channel: grpc.aio.Channel, service: str, key: str = "", method: str = "Echo"
) -> str:
    """`ok`, or the name of the code."""
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    call = channel.unary_unary(f"/{service}/{method}")
    try:
        return (await call(b"ok", timeout=5, metadata=metadata)).decode()
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def test_members_are_known_by_their_certificates(tmp_path: Path) -> None:
    certificates = dev_certificates()
    (tmp_path / "keys").write_text(KEY)
    inside = security(certificates, keys=tmp_path / "keys", peers=(PEER_NAME,))
    client = {"cert_file": certificates / "client.crt", "key_file": certificates / "client.key"}
    outside = security(certificates, **client)
    one_sided = security(certificates, "tls")
    async with serving(inside) as host:
        async with inside.channel(host.address) as channel:
            assert await echoes(channel, MEMBERS) == "ok"
            assert await echoes(channel, USERS) == "ok"  # parts of the system need no key
            assert await echoes(channel, DECODE, method="Decode") == "ok"
        async with outside.channel(host.address) as channel:
            assert await echoes(channel, MEMBERS) == "PERMISSION_DENIED"
            assert await echoes(channel, DECODE, method="Decode") == "guest"
            assert await echoes(channel, DECODE) == "PERMISSION_DENIED"
            assert await echoes(channel, MEMBERS, method="Decode") == "PERMISSION_DENIED"
            assert await echoes(channel, USERS) == "UNAUTHENTICATED"
            assert await echoes(channel, USERS, "x" * 32) == "UNAUTHENTICATED"
            assert await echoes(channel, USERS, KEY) == "ok"
        for stranger in (one_sided, NO_SECURITY):
            async with stranger.channel(host.address) as channel:
                assert await echoes(channel, USERS, KEY) == "UNAVAILABLE"


async def test_health_is_there_without_tls() -> None:
    async with serving(security(dev_certificates())) as host:
        assert host.health_address != host.address
        async with NO_SECURITY.channel(host.health_address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="liveness"), timeout=5
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            assert await echoes(channel, USERS) == "UNIMPLEMENTED"
    async with serving(NO_SECURITY) as host:
        assert host.health_address == ""


async def test_a_server_is_verified_by_name_and_authority(tmp_path: Path) -> None:
    write_dev_certificates(tmp_path)  # another authority
    certificates = dev_certificates()
    async with serving(security(certificates, "tls")) as host:
        named = security(certificates, "tls", server_name=PEER_NAME)
        wrong = security(certificates, "tls", server_name="elsewhere.example")
        for caller, wanted in (
            (security(certificates, "tls"), "ok"),
            (named, "ok"),
            (wrong, "UNAVAILABLE"),
            (security(tmp_path, "tls"), "UNAVAILABLE"),
        ):
            async with caller.channel(host.address) as channel:
                assert await echoes(channel, MEMBERS) == wanted


async def test_new_files_serve_the_next_connection(tmp_path: Path) -> None:
    write_dev_certificates(tmp_path)
    server = security(tmp_path, "tls")
    async with serving(server) as host:
        before = security(tmp_path, "tls")
        async with before.channel(host.address) as old:
            assert await echoes(old, USERS) == "ok"
            write_dev_certificates(tmp_path, force=True)
            server.refresh()
            assert server.version == 2
            assert await echoes(old, USERS) == "ok"  # a connection that is there stays
            async with security(tmp_path, "tls").channel(host.address) as new:
                assert await echoes(new, USERS) == "ok"
