"""The front door as a Python object, blocking (`Client`) or for asyncio (`AsyncClient`).

    with Client("127.0.0.1:50051") as client:
        for chunk in client.stream("ROMEO:", sampling=Sampling(max_tokens=32)):
            print(chunk.text, end="")

Every call has a deadline. A stream that breaks is resumed by itself: the same call is sent again
with the same request id and the number of the last token, and goes on behind it; the caller sees
one stream without gap or repetition. Closing a stream early cancels the request on the server.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing

from client.calls import (
    EXPLAIN_S,
    MAX_RESUMES,
    SHORT_CALL_S,
    errors_of,
    may_resume,
    pause_s,
)
from client.checks import allowed_s, check_text, check_token_ids
from client.decisions import Decision, decisions_of
from client.errors import ClientError
from client.generating import AsyncGenerating, Generating
from client.tracing import GENERATE, traced
from client.transport import Access, open_aio_channel, open_channel
from client.types import Chunk, Prompt, Sampling, Targets
from client.wire import Answer, make_request
from disagg.v1 import generation_pb2, generation_pb2_grpc, routing_pb2, routing_pb2_grpc


class Client(Generating):
    """Blocking client; thread-safe, one connection.

    Args:
        address: host:port of a balancer.
        timeout_s: Deadline of a generation that names none.
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
        access = access or Access()
        self._address = address
        self._metadata = access.metadata
        self._channel = open_channel(address, access)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._routing = routing_pb2_grpc.RoutingServiceStub(self._channel)
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
        """See `Generating.stream`."""
        seconds = allowed_s(timeout_s, self._timeout_s)
        answer = Answer(request_id or str(uuid.uuid4()), last_seq)
        for resumes in range(self._max_resumes + 1):
            request = make_request(
                prompt,
                request_id=answer.request_id,
                model=model,
                sampling=sampling,
                last_seq=answer.last_seq,
                cache_salt=cache_salt,
                priority=priority,
                targets=targets,
            )
            try:
                yield from self._read(request, answer, seconds)
                return
            except ClientError as error:
                if not may_resume(error, answer, resumes, self._max_resumes):
                    raise
                self._pause.wait(pause_s(resumes))

    def cancel(self, request_id: str) -> bool:
        """Ends a running request; returns whether there was one."""
        check_text("request_id", request_id)
        request = generation_pb2.CancelRequestRequest(request_id=request_id)
        with errors_of():
            return self._stub.CancelRequest(
                request, timeout=SHORT_CALL_S, metadata=self._metadata
            ).found

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, as a generation would encode it."""
        check_text("text", text)
        request = generation_pb2.TokenizeRequest(text=text)
        with errors_of():
            return list(
                self._stub.Tokenize(
                    request, timeout=SHORT_CALL_S, metadata=self._metadata
                ).token_ids
            )

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        check_token_ids("token_ids", token_ids)
        request = generation_pb2.DetokenizeRequest(token_ids=token_ids)
        with errors_of():
            return self._stub.Detokenize(
                request, timeout=SHORT_CALL_S, metadata=self._metadata
            ).text

    def models(self) -> list[str]:
        """Names of the models served."""
        request = generation_pb2.ListModelsRequest()
        with errors_of():
            answer = self._stub.ListModels(request, timeout=SHORT_CALL_S, metadata=self._metadata)
        return [model.id for model in answer.models]

    def explain(self, request_id: str, *, what_if: bool = False) -> tuple[Decision, ...]:
        """Why a request ran where it ran: its decisions, oldest first; empty if none is kept.

        Args:
            what_if: Also search for the smallest changes that would have changed the choice.
        """
        check_text("request_id", request_id)
        request = routing_pb2.ExplainRequest(request_id=request_id, what_if=what_if)
        with errors_of():
            answer = self._routing.Explain(request, timeout=EXPLAIN_S, metadata=self._metadata)
        return decisions_of(answer.decisions)

    def close(self) -> None:
        """Closes the connection; running streams are cancelled."""
        self._channel.close()

    def _read(
        self, request: generation_pb2.GenerateRequest, answer: Answer, timeout_s: float
    ) -> Generator[Chunk]:
        with traced(GENERATE, self._address, answer.request_id, self._metadata) as metadata:
            call = self._stub.Generate(request, timeout=timeout_s, metadata=metadata)
            try:
                with errors_of(answer):
                    for message in call:
                        yield answer.take(message)
            finally:
                call.cancel()
            answer.check_end()


class AsyncClient(AsyncGenerating):
    """The same for asyncio; belongs to the event loop that made it.

    Args:
        address: host:port of a balancer.
        timeout_s: Deadline of a generation that names none.
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
        access = access or Access()
        self._address = address
        self._metadata = access.metadata
        self._channel = open_aio_channel(address, access)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._routing = routing_pb2_grpc.RoutingServiceStub(self._channel)
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
        answer = Answer(request_id or str(uuid.uuid4()), last_seq)
        for resumes in range(self._max_resumes + 1):
            request = make_request(
                prompt,
                request_id=answer.request_id,
                model=model,
                sampling=sampling,
                last_seq=answer.last_seq,
                cache_salt=cache_salt,
                priority=priority,
                targets=targets,
            )
            stream = self._read(request, answer, seconds)
            try:
                async with aclosing(stream) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except ClientError as error:
                if not may_resume(error, answer, resumes, self._max_resumes):
                    raise
            await asyncio.sleep(pause_s(resumes))

    async def cancel(self, request_id: str) -> bool:
        """See `Client.cancel`."""
        check_text("request_id", request_id)
        request = generation_pb2.CancelRequestRequest(request_id=request_id)
        with errors_of():
            return (
                await self._stub.CancelRequest(
                    request, timeout=SHORT_CALL_S, metadata=self._metadata
                )
            ).found

    async def tokenize(self, text: str) -> list[int]:
        """See `Client.tokenize`."""
        check_text("text", text)
        request = generation_pb2.TokenizeRequest(text=text)
        with errors_of():
            return list(
                (
                    await self._stub.Tokenize(
                        request, timeout=SHORT_CALL_S, metadata=self._metadata
                    )
                ).token_ids
            )

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """See `Client.detokenize`."""
        check_token_ids("token_ids", token_ids)
        request = generation_pb2.DetokenizeRequest(token_ids=token_ids)
        with errors_of():
            return (
                await self._stub.Detokenize(request, timeout=SHORT_CALL_S, metadata=self._metadata)
            ).text

    async def models(self) -> list[str]:
        """See `Client.models`."""
        request = generation_pb2.ListModelsRequest()
        with errors_of():
            answer = await self._stub.ListModels(
                request, timeout=SHORT_CALL_S, metadata=self._metadata
            )
        return [model.id for model in answer.models]

    async def explain(self, request_id: str, *, what_if: bool = False) -> tuple[Decision, ...]:
        """See `Client.explain`."""
        check_text("request_id", request_id)
        request = routing_pb2.ExplainRequest(request_id=request_id, what_if=what_if)
        with errors_of():
            answer = await self._routing.Explain(
                request, timeout=EXPLAIN_S, metadata=self._metadata
            )
        return decisions_of(answer.decisions)

    async def close(self) -> None:
        """Closes the connection; running streams are cancelled."""
        await self._channel.close()

    async def _read(
        self, request: generation_pb2.GenerateRequest, answer: Answer, timeout_s: float
    ) -> AsyncGenerator[Chunk]:
        with traced(GENERATE, self._address, answer.request_id, self._metadata) as metadata:
            call = self._stub.Generate(request, timeout=timeout_s, metadata=metadata)
            try:
                with errors_of(answer):
                    async for message in call:
                        yield answer.take(message)
            finally:
                call.cancel()
            answer.check_end()
