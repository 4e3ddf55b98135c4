"""The front door for callers that fetch their tokens from decode themselves.

    async with AsyncDirectClient("127.0.0.1:50051") as client:
        async for chunk in client.stream("ROMEO:", sampling=Sampling(max_tokens=32)):
            print(chunk.token_ids)

The balancer places the request and runs its prefill; tokens come straight from the decode member.
They are the same tokens, numbered alike, and a stream that breaks is resumed behind the last one,
on whatever member the balancer names then. Decode has no text: the last piece carries that of all
tokens handed out. Stop texts are refused by the balancer. A caller that leaves cancels its decode;
one that vanishes before it came there leaves a slot and a hand-off that lapse by themselves.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing

import grpc
import grpc.aio

from client.calls import MAX_RESUMES, SHORT_CALL_S, errors_of, pause_s
from client.checks import allowed_s, check_text
from client.errors import ClientError
from client.generating import AsyncGenerating, Generating
from client.routed import RoutedAnswer
from client.tracing import DECODE, ROUTE, traced
from client.transport import Access, open_aio_channel, open_channel
from client.types import Chunk, Prompt, Sampling, Targets
from client.wire import make_request
from disagg.v1 import (
    decode_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    routing_pb2,
    routing_pb2_grpc,
)


class AsyncDirectClient(AsyncGenerating):
    """For asyncio; belongs to the event loop that made it.

    Args:
        address: host:port of a balancer; decode members have to be reachable as well.
        timeout_s: Deadline of a generation that names none, for each of its calls.
        max_resumes: How often a broken stream is resumed.
        access: What it takes to be let in: API key, TLS; absent: plaintext, and no key.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 600.0,
        max_resumes: int = MAX_RESUMES,
        access: Access | None = None,
    ) -> None:
        check_text("address", address)
        self._access = access or Access()
        self._address = address
        self._metadata = self._access.metadata
        self._channels: dict[str, grpc.aio.Channel] = {}
        balancer = self._channel(address)
        self._routing = routing_pb2_grpc.RoutingServiceStub(balancer)
        self._generation = generation_pb2_grpc.GenerationServiceStub(balancer)
        self._timeout_s = timeout_s
        self._max_resumes = max_resumes

    async def stream(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        model: str = "",
        sampling: Sampling | None = None,
        last_seq: int = 0,
        cache_salt: str = "",
        priority: int | None = None,
        targets: Targets | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Chunk]:
        """See `Client.stream`. Close it (`contextlib.aclosing`) to cancel the request."""
        seconds = allowed_s(timeout_s, self._timeout_s)
        answer = RoutedAnswer(
            make_request(
                prompt,
                request_id=request_id or str(uuid.uuid4()),
                model=model,
                sampling=sampling,
                last_seq=last_seq,
                cache_salt=cache_salt,
                priority=priority,
                targets=targets,
            )
        )
        for resumes in range(self._max_resumes + 1):
            try:
                async with aclosing(self._read(answer, seconds)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                yield answer.final(await self._text(answer))
                return
            except ClientError as error:
                if not answer.may_go_on(error, resumes, self._max_resumes):
                    raise
            await asyncio.sleep(pause_s(resumes))

    async def close(self) -> None:
        """Closes the connections; running streams are cancelled."""
        for channel in self._channels.values():
            await channel.close()

    async def _read(self, answer: RoutedAnswer, timeout_s: float) -> AsyncGenerator[Chunk]:
        with (
            traced(ROUTE, self._address, answer.request_id, self._metadata) as metadata,
            errors_of(answer),
        ):
            response = await self._routing.Route(
                answer.route_request(), timeout=timeout_s, metadata=metadata
            )
        chunk = answer.take_route(response)
        if not response.HasField("decode"):
            if chunk:
                yield chunk
            return
        stub = decode_pb2_grpc.DecodeServiceStub(self._channel(response.decode.address))
        address = response.decode.address
        with traced(DECODE, address, answer.request_id, ()) as metadata:
            # Before anything is handed out: a caller that leaves now has a call to cancel.
            call = stub.Decode(response.decode.request, timeout=timeout_s, metadata=metadata)
            try:
                if chunk:
                    yield chunk
                with errors_of(answer):
                    async for message in call:
                        if chunk := answer.take_decode(message):
                            yield chunk
            finally:
                call.cancel()
            answer.check_end()

    async def _text(self, answer: RoutedAnswer) -> str:
        if not answer.new_ids:
            return ""
        request = generation_pb2.DetokenizeRequest(token_ids=answer.new_ids)
        try:
            with errors_of(answer):
                return (
                    await self._generation.Detokenize(
                        request, timeout=SHORT_CALL_S, metadata=self._metadata
                    )
                ).text
        except ClientError as error:
            if error.code == "INVALID_ARGUMENT":  # the model came without a tokenizer
                return ""
            raise

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = open_aio_channel(address, self._access)
        return self._channels[address]


class DirectClient(Generating):
    """The same, blocking; thread-safe.

    Args:
        address: host:port of a balancer; decode members have to be reachable as well.
        timeout_s: Deadline of a generation that names none, for each of its calls.
        max_resumes: How often a broken stream is resumed.
        access: What it takes to be let in: API key, TLS; absent: plaintext, and no key.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 600.0,
        max_resumes: int = MAX_RESUMES,
        access: Access | None = None,
    ) -> None:
        check_text("address", address)
        self._access = access or Access()
        self._address = address
        self._metadata = self._access.metadata
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        balancer = self._channel(address)
        self._routing = routing_pb2_grpc.RoutingServiceStub(balancer)
        self._generation = generation_pb2_grpc.GenerationServiceStub(balancer)
        self._timeout_s = timeout_s
        self._max_resumes = max_resumes
        self._pause = threading.Event()

    def stream(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        model: str = "",
        sampling: Sampling | None = None,
        last_seq: int = 0,
        cache_salt: str = "",
        priority: int | None = None,
        targets: Targets | None = None,
        timeout_s: float | None = None,
    ) -> Generator[Chunk]:
        """See `Client.stream`."""
        seconds = allowed_s(timeout_s, self._timeout_s)
        answer = RoutedAnswer(
            make_request(
                prompt,
                request_id=request_id or str(uuid.uuid4()),
                model=model,
                sampling=sampling,
                last_seq=last_seq,
                cache_salt=cache_salt,
                priority=priority,
                targets=targets,
            )
        )
        for resumes in range(self._max_resumes + 1):
            try:
                yield from self._read(answer, seconds)
                yield answer.final(self._text(answer))
                return
            except ClientError as error:
                if not answer.may_go_on(error, resumes, self._max_resumes):
                    raise
                self._pause.wait(pause_s(resumes))

    def close(self) -> None:
        """Closes the connections; running streams are cancelled."""
        with self._lock:
            for channel in self._channels.values():
                channel.close()

    def _read(self, answer: RoutedAnswer, timeout_s: float) -> Generator[Chunk]:
        with (
            traced(ROUTE, self._address, answer.request_id, self._metadata) as metadata,
            errors_of(answer),
        ):
            response: routing_pb2.RouteResponse = self._routing.Route(
                answer.route_request(), timeout=timeout_s, metadata=metadata
            )
        chunk = answer.take_route(response)
        if not response.HasField("decode"):
            if chunk:
                yield chunk
            return
        stub = decode_pb2_grpc.DecodeServiceStub(self._channel(response.decode.address))
        address = response.decode.address
        with traced(DECODE, address, answer.request_id, ()) as metadata:
            # Before anything is handed out: a caller that leaves now has a call to cancel.
            call = stub.Decode(response.decode.request, timeout=timeout_s, metadata=metadata)
            try:
                if chunk:
                    yield chunk
                with errors_of(answer):
                    for message in call:
                        if chunk := answer.take_decode(message):
                            yield chunk
            finally:
                call.cancel()
            answer.check_end()

    def _text(self, answer: RoutedAnswer) -> str:
        if not answer.new_ids:
            return ""
        request = generation_pb2.DetokenizeRequest(token_ids=answer.new_ids)
        try:
            with errors_of(answer):
                return self._generation.Detokenize(
                    request, timeout=SHORT_CALL_S, metadata=self._metadata
                ).text
        except ClientError as error:
            if error.code == "INVALID_ARGUMENT":  # the model came without a tokenizer
                return ""
            raise

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if address not in self._channels:
                self._channels[address] = open_channel(address, self._access)
            return self._channels[address]
