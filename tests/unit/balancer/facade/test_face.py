"""The facade with a raw gRPC client, in front of scripted members."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from disagg.facade import smg_common_pb2
from disagg.facade import vllm_engine_pb2 as pb
from disagg.facade.vllm_engine_pb2_grpc import VllmEngineStub
from runtime.errors import DisaggError, Reason
from runtime.status import from_rpc_error
from tests.fakes.front_door import MODEL, PROMPT, FrontDoor, front_door
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium
METHODS = "/vllm.grpc.engine.VllmEngine"


def call(door: FrontDoor, request_id: str = "r", *, stream: bool = True, **sampling: Any) -> Any:
    sampling = {"temperature": 0.0, "max_tokens": 6, **sampling}
    request = pb.GenerateRequest(
        request_id=request_id,
        tokenized=pb.TokenizedInput(input_ids=PROMPT),
        sampling_params=sampling,
        stream=stream,
    )
    return VllmEngineStub(door.channel).Generate(request, timeout=20)


async def read(stream: Any) -> Any:
    try:
        return [message async for message in stream]
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


async def test_a_stream_is_chunks_and_one_complete_message() -> None:
    async with front_door() as door:
        *chunks, last = await read(call(door, logprobs=0))
        assert {message.WhichOneof("response") for message in chunks} == {"chunk"}
        ids = [token for message in chunks for token in message.chunk.token_ids]
        assert ids == answer(PROMPT, 6)
        counts = [message.chunk.completion_tokens for message in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 6
        assert {message.chunk.prompt_tokens for message in chunks} == {4}
        logprobs = [v for m in chunks for v in m.chunk.output_logprobs.token_logprobs]
        assert logprobs == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
        complete = last.complete
        assert (list(complete.output_ids), complete.finish_reason) == (ids, "length")
        assert (complete.prompt_tokens, complete.completion_tokens) == (4, 6)
        assert complete.cached_tokens == 2
        assert list(complete.output_logprobs.token_ids) == ids
        await door.settle()


async def test_without_a_stream_there_is_the_complete_message_alone() -> None:
    async with front_door() as door:
        [only] = await read(call(door, stream=False))
        assert list(only.complete.output_ids) == answer(PROMPT, 6)
        assert not only.complete.HasField("output_logprobs")


async def test_absent_limits_mean_what_fits() -> None:
    async with front_door() as door:
        request = pb.GenerateRequest(request_id="r", text="Hi", stream=False)
        door.prefills[0].scripts.append(Script(stop_at=1))
        [only] = await read(VllmEngineStub(door.channel).Generate(request, timeout=20))
        assert (only.complete.finish_reason, len(only.complete.output_ids)) == ("stop", 1)
        sent = door.prefills[0].calls[0]
        assert sent.sampling.max_tokens == 4096 - len(sent.token_ids)
        assert sent.sampling.temperature == 1.0


async def test_what_ended_it_is_named() -> None:
    async with front_door() as door:
        ids = answer(PROMPT, 6)
        door.decodes[0].scripts.append(Script(stop_at=3))
        [only] = await read(call(door, stream=False, stop_token_ids=[ids[2]]))
        assert only.complete.matched_token_id == ids[2]
        text = door.balancer.codec.decode(ids)
        [only] = await read(call(door, stream=False, stop=["nothing", text[3:5]]))
        assert (only.complete.finish_reason, only.complete.matched_stop_str) == (
            "stop",
            text[3:5],
        )


async def test_an_abort_ends_the_request_and_frees_everything() -> None:
    async with front_door() as door:
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=2))
        stub = VllmEngineStub(door.channel)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read(call(door, "gone")))
            await asyncio.wait_for(door.decodes[0].reached.wait(), 10)
            ids = ["nobody", "gone"]
            await stub.Abort(pb.AbortRequest(request_ids=ids), timeout=5)
        last = reading.result()[-1].complete
        assert last.finish_reason == "abort"
        assert list(last.output_ids) == answer(PROMPT, 3)
        await stub.Abort(pb.AbortRequest(request_ids=ids), timeout=5)  # twice is harmless
        await door.settle()


async def test_who_leaves_frees_everything() -> None:
    async with front_door() as door:
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=1))
        stream = call(door)
        await asyncio.wait_for(door.decodes[0].reached.wait(), 10)
        stream.cancel()
        await door.settle()
        assert door.decodes[0].cancelled == 1


async def test_bad_requests_are_statuses_with_reasons() -> None:
    async with front_door() as door:
        stub = VllmEngineStub(door.channel)
        for request, reason in (
            (pb.GenerateRequest(request_id="r"), Reason.BAD_REQUEST),
            (pb.GenerateRequest(request_id="a b", text="x"), Reason.BAD_REQUEST),
            (
                pb.GenerateRequest(request_id="r", text="x", mm_inputs=pb.MultimodalInputs()),
                Reason.UNSUPPORTED_PARAMETER,
            ),
            (
                pb.GenerateRequest(request_id="r", tokenized={"input_ids": [9999]}),
                Reason.BAD_REQUEST,
            ),
        ):
            error = await read(stub.Generate(request, timeout=5))
            assert isinstance(error, DisaggError), request
            assert error.reason is reason
        assert door.prefills[0].calls == []


async def test_facts_of_model_and_server() -> None:
    async with front_door(decodes=2) as door:
        stub = VllmEngineStub(door.channel)
        info = await stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=5)
        assert (info.served_model_name, info.max_context_length) == ("tiny-v4", 4096)
        server = await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=5)
        assert (server.server_type, server.kv_role) == ("vllm-grpc", "kv_both")
        assert server.kv_connector == "SharedStorageConnector"
        assert server.pairing_protocol == b"layout-1".hex()
        assert (server.data_parallel_size, server.block_size) == (2, 32)
        assert server.kv_engine_id
        loads = await stub.GetLoads(pb.GetLoadsRequest(), timeout=5)
        assert [load.dp_rank for load in loads.loads] == [0, 1]
        one = await stub.GetLoads(pb.GetLoadsRequest(dp_rank=1), timeout=5)
        assert [load.dp_rank for load in one.loads] == [1]
        assert one.dp_rank_count == 2
        await door.generate()
        after = await stub.GetLoads(pb.GetLoadsRequest(), timeout=5)
        assert after.loads[0].cache_hit_rate == 0.5


async def test_health_follows_readiness_under_both_names() -> None:
    async with front_door() as door:
        stub, health = VllmEngineStub(door.channel), health_pb2_grpc.HealthStub(door.channel)
        name = health_pb2.HealthCheckRequest(service="vllm.grpc.engine.VllmEngine")
        for ready in (False, True):
            await door.balancer.host.health.report(ready, "test")
            answered = await stub.HealthCheck(pb.HealthCheckRequest(), timeout=5)
            assert answered.healthy is ready
            assert bool(answered.message)
            state = (await health.Check(name, timeout=5)).status
            assert (state == health_pb2.HealthCheckResponse.SERVING) is ready
        await door.balancer.host.begin_drain()
        answered = await stub.HealthCheck(pb.HealthCheckRequest(), timeout=5)
        assert (answered.healthy, answered.message) == (False, "draining")
        error = await read(call(door))
        assert isinstance(error, DisaggError)
        assert error.reason is Reason.DRAINING


async def test_the_tokenizer_comes_as_an_archive() -> None:
    async with front_door() as door:
        request = smg_common_pb2.GetTokenizerRequest()
        stream = VllmEngineStub(door.channel).GetTokenizer(request, timeout=20)
        pieces = [piece async for piece in stream]
        data = b"".join(piece.data for piece in pieces)
        assert all(len(piece.data) <= 64 << 10 for piece in pieces)
        assert [bool(piece.sha256) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert pieces[-1].sha256 == hashlib.sha256(data).hexdigest()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.read("tokenizer.json") == (MODEL / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    "method",
    [
        f"{METHODS}/Embed",
        f"{METHODS}/StartProfile",
        f"{METHODS}/SubscribeKvEvents",
        "/sglang.grpc.scheduler.SglangScheduler/HealthCheck",
    ],
)
async def test_what_is_not_spoken_answers_unimplemented_at_once(method: str) -> None:
    async with front_door() as door:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await door.channel.unary_unary(method)(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_it_can_be_turned_off() -> None:
    async with front_door(facade={"enabled": False}) as door:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await VllmEngineStub(door.channel).HealthCheck(pb.HealthCheckRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
