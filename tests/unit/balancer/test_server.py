"""The faces: every form of a prompt, every bad input, heartbeats, administration."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from disagg.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    generation_pb2,
    membership_pb2,
    membership_pb2_grpc,
)
from runtime.errors import InvalidRequest, NotFound, Reason, Unavailable
from runtime.status import from_rpc_error
from tests.fakes.front_door import front_door, tokens_of

pytestmark = pytest.mark.medium

BAD_INPUT: list[tuple[dict[str, Any], Reason, str]] = [
    ({"text": ""}, Reason.BAD_REQUEST, "text: the prompt is empty"),
    ({"chat": {}}, Reason.BAD_REQUEST, "chat.messages"),
    (
        {"chat": {"messages": [{"role": "judge", "content": "x"}]}},
        Reason.BAD_REQUEST,
        "chat.messages[0].role: role 'judge' is unknown",
    ),
    ({"token_ids": {"ids": []}}, Reason.BAD_REQUEST, "prompt: the prompt is empty"),
    (
        {"token_ids": {"ids": [1, 2048]}},
        Reason.BAD_REQUEST,
        "token_ids.ids[1]: token id 2048 is outside the vocabulary; ids are in [0, 2048)",
    ),
    ({"text": "x", "request_id": "a b"}, Reason.BAD_REQUEST, "request_id"),
    ({"text": "x", "model": "gpt"}, Reason.UNKNOWN_MODEL, "use 'tiny-v4'"),
    ({"text": "x", "sampling": {"n": 2}}, Reason.UNSUPPORTED_PARAMETER, "sampling.n"),
    ({"text": "x", "sampling": {"temperature": -1}}, Reason.BAD_SAMPLING, "sampling.temperature"),
    ({"text": "x", "sampling": {"max_tokens": 4095}}, Reason.PROMPT_TOO_LONG, "at most 4094"),
    ({"token_ids": {"ids": [5] * 4096}}, Reason.PROMPT_TOO_LONG, "at most 4095"),
]


async def test_bad_input_is_refused_with_reason_field_and_way_out() -> None:
    async with front_door() as door:
        for fields, reason, message in BAD_INPUT:
            fields = {"sampling": {}, **fields}
            error = await door.generate(fields.pop("request_id", "r"), **fields)
            assert isinstance(error, InvalidRequest | NotFound), (fields, error)
            assert error.reason is reason
            assert message in error.message
            assert (error.violations != ()) == isinstance(error, InvalidRequest)
        request = generation_pb2.GenerateRequest(request_id="r")
        with pytest.raises(grpc.aio.AioRpcError, match="send text, chat or token_ids"):
            await door.stub.Generate(request, timeout=5).read()
        assert door.prefills[0].calls == []  # nothing reached a member
        assert tokens_of(await door.generate())  # and nobody was hurt


async def test_messages_that_cannot_be_read_hurt_nobody() -> None:
    async with front_door() as door:
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(door.balancer.host.address, options=options) as wide:
            raw = wide.unary_stream("/disagg.v1.GenerationService/Generate")
            # Field 3 (text) with a byte that is no UTF-8; 17 MiB of text; half a message.
            for message, code in (
                (b"\x1a\x01\xff", grpc.StatusCode.INVALID_ARGUMENT),
                (b"\x1a" + b"x" * (17 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),
                (b"\x1a\x7f", grpc.StatusCode.INVALID_ARGUMENT),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await raw(message, timeout=10).read()
                assert caught.value.code() is code
                if code is grpc.StatusCode.INVALID_ARGUMENT:
                    known = from_rpc_error(caught.value)
                    assert known.reason is Reason.BAD_REQUEST
                    assert "text in UTF-8" in known.message
        assert door.prefills[0].calls == []
        assert tokens_of(await door.generate())


async def test_three_forms_of_a_prompt() -> None:
    async with front_door() as door:
        chat = generation_pb2.ChatPrompt(
            messages=[generation_pb2.ChatMessage(role="user", content="Hi")]
        )
        await door.generate("r1", chat=chat)
        await door.generate("r2", text="<｜User｜>Hi<｜Assistant｜></think>")
        sent = [list(call.token_ids) for call in door.prefills[0].calls]
        await door.generate("r3", token_ids=generation_pb2.TokenIds(ids=sent[0]))
        sent = [list(call.token_ids) for call in door.prefills[0].calls]
        assert sent[0] == sent[1] == sent[2]


async def test_a_long_text_is_encoded_off_the_loop_and_alike() -> None:
    async with front_door() as door:
        text = "And it came to pass. " * 300
        request = generation_pb2.TokenizeRequest(text=text)
        ids = list((await door.stub.Tokenize(request, timeout=5)).token_ids)
        assert ids == door.balancer.codec.encode_text(text)
        back = generation_pb2.DetokenizeRequest(token_ids=ids)
        assert (await door.stub.Detokenize(back, timeout=5)).text == text


async def test_tokenizing_nothing_and_nonsense() -> None:
    async with front_door() as door:
        with pytest.raises(grpc.aio.AioRpcError, match="there is none"):
            await door.stub.Tokenize(generation_pb2.TokenizeRequest(), timeout=5)
        request = generation_pb2.DetokenizeRequest(token_ids=[4000])
        with pytest.raises(grpc.aio.AioRpcError, match="outside the vocabulary"):
            await door.stub.Detokenize(request, timeout=5)


async def test_the_model_is_listed_with_its_layout() -> None:
    async with front_door() as door:
        request = generation_pb2.ListModelsRequest()
        [model] = (await door.stub.ListModels(request, timeout=5)).models
        assert (model.id, model.max_model_len) == ("tiny-v4", 4096)
        assert bytes.fromhex(model.fingerprint) == b"layout-1"
    async with front_door(decodes=0) as door:
        [model] = (await door.stub.ListModels(request, timeout=5)).models
        assert model.fingerprint == ""


async def test_an_id_is_made_and_echoed() -> None:
    async with front_door() as door:
        messages = await door.generate("")
        assert len({message.request_id for message in messages}) == 1
        assert len(messages[0].request_id) == 36


async def test_log_probabilities_pass_through() -> None:
    async with front_door() as door:
        messages = await door.generate(sampling={"max_tokens": 3, "logprobs": 1})
        values = [entry.logprob for message in messages for entry in message.logprobs]
        assert values == [-1.0, -2.0, -3.0]


async def test_heartbeats_are_answered_and_listed() -> None:
    async with front_door(announce=False) as door:
        stub = membership_pb2_grpc.MembershipServiceStub(door.channel)
        [p0, d0] = door.members
        await p0.announce(door.channel)
        await d0.announce(door.channel, ready=False)
        listed = await stub.ListMembers(membership_pb2.ListMembersRequest(), timeout=5)
        assert {m.member_id: m.ready for m in listed.members} == {"p0": True, "d0": False}
        only = membership_pb2.ListMembersRequest(role=membership_pb2.MEMBER_ROLE_DECODE)
        listed = await stub.ListMembers(only, timeout=5)
        assert [m.member_id for m in listed.members] == ["d0"]
        assert listed.members[0].window_replay_tokens == 378
        assert listed.members[0].age.ToNanoseconds() >= 0
        door.balancer.members.order_drain("d0")
        request = membership_pb2.HeartbeatRequest(member=listed.members[0])
        request.member.sequence += 5
        answer = await stub.Heartbeat(request, timeout=5)
        assert answer.drain
        assert answer.interval.ToNanoseconds() == 500_000_000


@pytest.mark.parametrize("field", ["role", "member_id", "address", "fingerprint"])
async def test_a_heartbeat_without_what_it_takes_is_refused(field: str) -> None:
    async with front_door() as door:
        stub = membership_pb2_grpc.MembershipServiceStub(door.channel)
        listed = await stub.ListMembers(membership_pb2.ListMembersRequest(), timeout=5)
        request = membership_pb2.HeartbeatRequest(member=listed.members[0])
        request.member.ClearField(field)  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError, match=rf"member\.{field}") as caught:
            await stub.Heartbeat(request, timeout=5)
        assert from_rpc_error(caught.value).reason is Reason.BAD_REQUEST


async def test_a_drain_refuses_new_requests_and_lets_running_ones_end() -> None:
    async with front_door() as door:
        admin = admin_pb2_grpc.AdminServiceStub(door.channel)
        running = asyncio.gather(door.generate("r1", sampling={"max_tokens": 50}))
        await door.until(lambda: len(door.balancer.running) == 1)
        await admin.Drain(admin_pb2.DrainRequest(), timeout=5)
        error = await door.generate("r2")
        assert isinstance(error, Unavailable)
        assert error.reason is Reason.DRAINING
        assert door.metric("disagg_requests_total", endpoint="generate", reason="DRAINING") == 1
        [messages] = await running
        assert messages[-1].final.finish_reason == common_pb2.FINISH_REASON_LENGTH
        await admin.Undrain(admin_pb2.UndrainRequest(), timeout=5)
        assert tokens_of(await door.generate("r3"))


async def test_server_info_shows_what_happened() -> None:
    async with front_door() as door:
        await door.generate()
        admin = admin_pb2_grpc.AdminServiceStub(door.channel)
        info = await admin.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=5)
        assert (info.role, info.version) == ("balancer", "test")
        ended = "disagg_requests_total{endpoint=generate,model_name=,outcome=length,reason=}"
        assert info.statistics[ended] == 1
        assert info.statistics["disagg_generated_tokens_total{model_name=}"] == 6
        assert info.statistics["requests_running"] == 0
        assert info.statistics["clean_ups_failed"] == 0
