"""API keys at both doors of a whole balancer, and what a tenant sees of another."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from disagg.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    routing_pb2,
    routing_pb2_grpc,
)
from tests.fakes.front_door import PROMPT
from tests.fakes.http_face import faced

pytestmark = pytest.mark.medium
KEYS = {"a": "a" * 32, "b": "b" * 32}
BODY = {"prompt": "x", "max_tokens": 2}


def bearer(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


async def test_keys_open_the_doors_and_name_the_tenant(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()))
    async with faced(auth={"keys_file": str(path)}) as (door, client):
        for page in ("/health", "/ping", "/ready", "/metrics", "/version"):
            assert (await client.get(page)).status_code in (200, 503), page
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await client.post("/v1/completions", json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await client.get("/v1/models")).status_code == 401
        metrics = door.balancer.metrics
        assert metrics.value("disagg_http_refused_total", cause="denied") == 3
        assert door.prefills[0].calls == []
        salted = BODY | {"cache_salt": "own"}
        for body, tenant in ((BODY, "a"), (salted, "b")):
            answer = await client.post("/v1/completions", json=body, headers=bearer(tenant))
            assert answer.status_code == 200
        assert [call.cache_salt for call in door.prefills[0].calls] == ["a", "b/own"]

        request = generation_pb2.GenerateRequest(
            request_id="g", token_ids=generation_pb2.TokenIds(ids=PROMPT)
        )
        request.sampling.max_tokens = 2
        call = door.stub.Generate(request, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call = door.stub.Generate(request, timeout=10, metadata=tuple(bearer("a").items()))
        assert [message async for message in call][-1].HasField("final")


async def test_a_tenant_cannot_end_the_request_of_another(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()))
    async with faced(auth={"keys_file": str(path)}) as (door, _):
        request = generation_pb2.GenerateRequest(
            request_id="g", token_ids=generation_pb2.TokenIds(ids=PROMPT)
        )
        request.sampling.max_tokens = 400
        call = door.stub.Generate(request, timeout=10, metadata=tuple(bearer("a").items()))
        await call.read()
        cancel = generation_pb2.CancelRequestRequest(request_id="g")
        found = {}
        for tenant in ("b", "a"):
            answer = await door.stub.CancelRequest(
                cancel, timeout=5, metadata=tuple(bearer(tenant).items())
            )
            found[tenant] = answer.found
        assert found == {"b": False, "a": True}
        while await call.read() is not grpc.aio.EOF:
            pass


async def test_an_id_of_one_tenant_is_nothing_to_another(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()) + "c" * 32)
    keys = KEYS | {"": "c" * 32}
    async with faced(auth={"keys_file": str(path)}) as (door, _):
        routing = routing_pb2_grpc.RoutingServiceStub(door.channel)

        def metadata(tenant: str) -> tuple[tuple[str, str], ...]:
            return (("authorization", f"Bearer {keys[tenant]}"),)

        async def decisions(tenant: str, request_id: str) -> int:
            asked = routing_pb2.ExplainRequest(request_id=request_id)
            answer = await routing.Explain(asked, timeout=5, metadata=metadata(tenant))
            return len(answer.decisions)

        request = generation_pb2.GenerateRequest(
            request_id="g", token_ids=generation_pb2.TokenIds(ids=PROMPT)
        )
        request.sampling.max_tokens = 400
        running = door.stub.Generate(request, timeout=10, metadata=metadata("a"))
        assert (await running.read()).request_id == "g"
        assert [await decisions(tenant, "g") for tenant in ("a", "b", "")] == [1, 0, 0]
        assert [await decisions(tenant, "a:g") for tenant in ("b", "")] == [0, 1]
        request.sampling.max_tokens = 2
        for tenant in ("b", ""):  # neither told of the other's request, nor kept out by it
            call = door.stub.Generate(request, timeout=10, metadata=metadata(tenant))
            messages = [message async for message in call]
            assert messages[-1].HasField("final")
            assert {message.request_id for message in messages} == {"g"}
            assert await decisions(tenant, "g") == 1
        again = door.stub.Generate(request, timeout=10, metadata=metadata("a"))
        with pytest.raises(grpc.aio.AioRpcError, match="request_id: 'g' is running"):
            await again.read()
        assert [call.request_id for call in door.decodes[0].calls] == ["a:g", "b:g", "g"]
        running.cancel()
        await door.settle()


async def test_a_tenant_drains_no_balancer(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()) + "c" * 32)
    async with faced(auth={"keys_file": str(path)}) as (door, client):
        admin = admin_pb2_grpc.AdminServiceStub(door.channel)
        tenant = tuple(bearer("a").items())
        info = await admin.GetServerInfo(
            admin_pb2.GetServerInfoRequest(), timeout=5, metadata=tenant
        )
        assert info.role == "balancer"
        for call in (
            admin.Drain(admin_pb2.DrainRequest(), timeout=5, metadata=tenant),
            admin.Undrain(admin_pb2.UndrainRequest(), timeout=5, metadata=tenant),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="for keys without a tenant") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        answer = await client.post("/v1/completions", json=BODY, headers=bearer("a"))
        assert answer.status_code == 200
        operator = (("authorization", f"Bearer {'c' * 32}"),)
        await admin.Drain(admin_pb2.DrainRequest(), timeout=5, metadata=operator)
        answer = await client.post("/v1/completions", json=BODY, headers=bearer("a"))
        assert answer.status_code == 503
        await admin.Undrain(admin_pb2.UndrainRequest(), timeout=5, metadata=operator)
