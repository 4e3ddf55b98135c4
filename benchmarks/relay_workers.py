"""Trivial workers for the relay benchmark: they answer at once, or one token every so often.

    python -m benchmarks.relay_workers grpc --balancer HOST:PORT
    python -m benchmarks.relay_workers http

`grpc` is a prefill and a decode member that speak the real contract and announce themselves;
`http` an OpenAI worker as other routers expect it. Both write one line when they listen, and both
take the gap between two tokens, in microseconds, from the seed of the request, so that every path
carries it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from disagg.v1 import (
    common_pb2,
    decode_pb2,
    decode_pb2_grpc,
    membership_pb2,
    membership_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)

MODEL = "tiny-v4"
TOKEN, TEXT = 300, "word "
FINGERPRINT = b"relay-01"
_HEARTBEAT_S = 0.5
_MAX_GAP_US = 1_000_000
_PREFILL, _DECODE = membership_pb2.MEMBER_ROLE_PREFILL, membership_pb2.MEMBER_ROLE_DECODE
_servers: list[grpc.aio.Server] = []  # a server without a reference stops
_LENGTH = common_pb2.FINISH_REASON_LENGTH


class _Prefill(prefill_pb2_grpc.PrefillServiceServicer):
    async def Prefill(
        self, request: prefill_pb2.PrefillRequest, _context: Any
    ) -> AsyncIterator[prefill_pb2.PrefillResponse]:
        first = prefill_pb2.PrefillFirstToken(token_id=TOKEN)
        committed = prefill_pb2.PrefillCommitted()
        if request.sampling.max_tokens <= 1:
            first.finish_reason = _LENGTH
        else:
            committed.ticket.request_id = request.request_id
            committed.ticket.handoff_id = request.request_id
            committed.ticket.attempt = request.attempt
            committed.ticket.fingerprint = FINGERPRINT
        yield prefill_pb2.PrefillResponse(first_token=first)
        yield prefill_pb2.PrefillResponse(committed=committed)


class _Decode(decode_pb2_grpc.DecodeServiceServicer):
    async def ReserveSlot(
        self, request: decode_pb2.ReserveSlotRequest, _context: Any
    ) -> decode_pb2.ReserveSlotResponse:
        return decode_pb2.ReserveSlotResponse(credit_id=request.request_id)

    async def ReleaseSlot(
        self, _request: decode_pb2.ReleaseSlotRequest, _context: Any
    ) -> decode_pb2.ReleaseSlotResponse:
        return decode_pb2.ReleaseSlotResponse(found=True)

    async def Decode(
        self, request: decode_pb2.DecodeRequest, _context: Any
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        yield decode_pb2.DecodeResponse(resumed=decode_pb2.DecodeResumed())
        last, gap_s = request.sampling.max_tokens, _gap_s(request.sampling.seed)
        for number in range(request.num_generated + 2, last + 1):
            if gap_s:
                await asyncio.sleep(gap_s)
            tokens = decode_pb2.DecodeTokens(attempt=request.attempt, seq=number, token_ids=[TOKEN])
            if number == last:
                tokens.finish_reason = _LENGTH
            yield decode_pb2.DecodeResponse(tokens=tokens)


async def serve_grpc(balancer: str) -> None:
    """A member of each kind; announces them until it is stopped."""
    addresses = {}
    for role, add, face in (
        (_PREFILL, prefill_pb2_grpc.add_PrefillServiceServicer_to_server, _Prefill()),
        (_DECODE, decode_pb2_grpc.add_DecodeServiceServicer_to_server, _Decode()),
    ):
        server = grpc.aio.server()
        add(face, server)  # type: ignore[arg-type]  # the pairs above fit
        addresses[role] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        _servers.append(server)
    sequence = 0
    async with grpc.aio.insecure_channel(balancer) as channel:
        stub = membership_pb2_grpc.MembershipServiceStub(channel)
        while True:
            sequence += 1
            for role, address in addresses.items():
                member = membership_pb2.Member(
                    member_id=f"m{role}",
                    role=role,
                    address=address,
                    group_id=f"g{role}",
                    group_size=1,
                    fingerprint=FINGERPRINT,
                    model=MODEL,
                    max_model_len=4096,
                    block_tokens=32,
                    ready=True,
                    sequence=sequence,
                )
                await stub.Heartbeat(membership_pb2.HeartbeatRequest(member=member), timeout=5)
            if sequence == 1:
                _say(addresses[_DECODE])
            await asyncio.sleep(_HEARTBEAT_S)


async def serve_http() -> None:
    """An OpenAI worker that knows one streaming answer."""
    server = await asyncio.start_server(_connection, "127.0.0.1", 0)
    _say("{}:{}".format(*server.sockets[0].getsockname()))
    await server.serve_forever()


async def _connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            lengths = [line[15:] for line in lines if line.startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            if head.startswith(b"POST") and body:
                await _stream(writer, json.loads(body))
            else:
                _answer(writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        pass
    finally:
        writer.close()


async def _stream(writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    gap_s = _gap_s(asked.get("seed") or 0)
    for number in range(asked["max_tokens"]):
        if gap_s and number:
            await asyncio.sleep(gap_s)
        reason = "length" if number == asked["max_tokens"] - 1 else None
        choice = {"index": 0, "text": TEXT, "finish_reason": reason, "logprobs": None}
        event = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": MODEL,
            "choices": [choice],
        }
        _chunk(writer, f"data: {json.dumps(event)}\n\n".encode())
        await writer.drain()
    _chunk(writer, b"data: [DONE]\n\n")
    _chunk(writer, b"")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def _answer(writer: asyncio.StreamWriter) -> None:
    facts = {"id": MODEL, "model_path": MODEL, "served_model_name": MODEL, "is_generation": True}
    facts |= {"object": "list", "data": [{"id": MODEL, "object": "model"}]}  # type: ignore[dict-item]
    data = json.dumps(facts).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(data), data)
    )


def _gap_s(seed: int) -> float:
    """Seconds between two tokens; a seed that was drawn and not chosen means none."""
    return seed / 1e6 if seed <= _MAX_GAP_US else 0.0


def _say(address: str) -> None:
    print(json.dumps({"address": address}), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("grpc", "http"))
    parser.add_argument("--balancer", metavar="HOST:PORT", help="whom to announce to")
    options = parser.parse_args(arguments)
    if options.kind == "grpc" and not options.balancer:
        parser.error("grpc needs --balancer")
    asyncio.run(serve_http() if options.kind == "http" else serve_grpc(options.balancer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
