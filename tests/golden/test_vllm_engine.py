"""Our description of the gateway interface is the published one, as far as it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from disagg.facade import smg_common_pb2, vllm_engine_pb2

DATA = Path(__file__).parent / "data" / "vllm_engine"
PUBLISHED = json.loads((DATA / "published.json").read_text(encoding="utf-8"))
MESSAGES = json.loads((DATA / "messages.json").read_text(encoding="utf-8"))
FILES = []
for module in (vllm_engine_pb2, smg_common_pb2):
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    FILES.append(file)
Field = descriptor_pb2.FieldDescriptorProto


def fields() -> dict[str, dict[str, list[object]]]:
    found: dict[str, dict[str, list[object]]] = {}

    def walk(message: descriptor_pb2.DescriptorProto, prefix: str) -> None:
        name = f"{prefix}.{message.name}"
        found[name] = {}
        for field in message.field:
            in_oneof = field.HasField("oneof_index") and not field.proto3_optional
            found[name][field.name] = [
                field.number,
                Field.Type.Name(field.type).removeprefix("TYPE_").lower(),
                Field.Label.Name(field.label).removeprefix("LABEL_").lower(),
                field.type_name.lstrip("."),
                field.proto3_optional,
                message.oneof_decl[field.oneof_index].name if in_oneof else "",
            ]
        for nested in message.nested_type:
            walk(nested, name)

    for file in FILES:
        for message in file.message_type:
            walk(message, file.package)
    return found


@pytest.mark.parametrize("name", sorted(fields()))
def test_every_field_is_the_published_one(name: str) -> None:
    published = PUBLISHED["messages"][name]
    for field, facts in fields()[name].items():
        assert facts == published[field], field


def test_every_method_is_the_published_one() -> None:
    [service] = FILES[0].service
    for method in service.method:
        assert PUBLISHED["methods"][f"/vllm.grpc.engine.VllmEngine/{method.name}"] == [
            method.input_type.lstrip("."),
            method.output_type.lstrip("."),
            method.client_streaming,
            method.server_streaming,
        ]
    required = {"Generate", "HealthCheck", "Abort", "GetModelInfo", "GetServerInfo", "GetLoads"}
    assert {method.name for method in service.method} == required | {"GetTokenizer"}


def test_messages_of_the_published_code_are_read() -> None:
    request = vllm_engine_pb2.GenerateRequest.FromString(bytes.fromhex(MESSAGES["request"]))
    assert request.request_id == "chatcmpl-1"
    assert list(request.tokenized.input_ids) == [0, 300, 301]
    sampling = request.sampling_params
    assert (sampling.seed, sampling.max_tokens, sampling.logprobs) == (-3, 9, 2)
    assert (request.stream, request.data_parallel_rank) == (True, 1)
    assert request.SerializeToString(deterministic=True).hex() == MESSAGES["request"]


def test_messages_of_ours_are_byte_for_byte_theirs() -> None:
    logprobs = vllm_engine_pb2.OutputLogProbs(
        token_logprobs=[-0.5],
        token_ids=[7],
        top_logprobs=[vllm_engine_pb2.TopLogProbs(values=[-0.5, -1.5], token_ids=[7, 8])],
    )
    chunk = vllm_engine_pb2.GenerateStreamChunk(
        token_ids=[7],
        prompt_tokens=3,
        completion_tokens=1,
        cached_tokens=2,
        output_logprobs=logprobs,
    )
    complete = vllm_engine_pb2.GenerateComplete(
        output_ids=[7, 8],
        finish_reason="stop",
        prompt_tokens=3,
        completion_tokens=2,
        cached_tokens=2,
        matched_token_id=8,
    )
    for name, message in (
        ("chunk", vllm_engine_pb2.GenerateResponse(chunk=chunk)),
        ("complete", vllm_engine_pb2.GenerateResponse(complete=complete)),
    ):
        assert message.SerializeToString(deterministic=True).hex() == MESSAGES[name]
