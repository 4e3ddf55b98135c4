"""Which faces a balancer shows, by its settings."""

from __future__ import annotations

import grpc
import pytest

from disagg.facade import vllm_engine_pb2, vllm_engine_pb2_grpc
from tests.fakes.front_door import front_door

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("is_on", [True, False])
async def test_the_facade_and_the_http_door_can_be_left_out(is_on: bool) -> None:
    sections = {"facade": {"enabled": is_on}, "http": {"port": 0 if is_on else None}}
    async with front_door(**sections) as door:
        assert bool(door.http) == is_on
        stub = vllm_engine_pb2_grpc.VllmEngineStub(door.channel)
        call = stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest(), timeout=5)
        if is_on:
            assert (await call).server_type == "vllm-grpc"
        else:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
