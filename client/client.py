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
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import grpc
import grpc.aio

from client.checks import check_text, check_token_ids
from client.errors import ClientError, from_call
from client.generating import AsyncGenerating, Generating
from client.types import Chunk, Prompt, Sampling
from client.wire import Answer, make_request
from disagg.v1 import generation_pb2, generation_pb2_grpc

MAX_RESUMES = 3
_PAUSES_S = (0.05, 0.25, 1.0)
SHORT_CALL_S = 30.0
CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
]


class Client(Generating):
    """Blocking client; thread-safe, one connection.

    Args:
        address: host:port of a balancer.
        timeout_s: Deadline of a generation that names none.
        max_resumes: How often a broken stream is resumed.
    """

    def __init__(
        self, address: str, *, timeout_s: float = 600.0, max_resumes: int = MAX_RESUMES
    ) -> None:
        check_text("address", address)
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
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
        timeout_s: float | None = None,
    ) -> Generator[Chunk]:
        """See `Generating.stream`."""
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
            )
            try:
                yield from self._read(request, answer, timeout_s or self._timeout_s)
                return
            except ClientError as error:
                if not _may_resume(error, answer, resumes, self._max_resumes):
                    raise
                self._pause.wait(pause_s(resumes))

    def cancel(self, request_id: str) -> bool:
        """Ends a running request; returns whether there was one."""
        check_text("request_id", request_id)
        request = generation_pb2.CancelRequestRequest(request_id=request_id)
        with errors_of():
            return self._stub.CancelRequest(request, timeout=SHORT_CALL_S).found

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, as a generation would encode it."""
        check_text("text", text)
        request = generation_pb2.TokenizeRequest(text=text)
        with errors_of():
            return list(self._stub.Tokenize(request, timeout=SHORT_CALL_S).token_ids)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        check_token_ids("token_ids", token_ids)
        request = generation_pb2.DetokenizeRequest(token_ids=token_ids)
        with errors_of():
            return self._stub.Detokenize(request, timeout=SHORT_CALL_S).text

    def models(self) -> list[str]:
        """Names of the models served."""
        request = generation_pb2.ListModelsRequest()
        with errors_of():
            answer = self._stub.ListModels(request, timeout=SHORT_CALL_S)
        return [model.id for model in answer.models]

    def close(self) -> None:
        """Closes the connection; running streams are cancelled."""
        self._channel.close()

    def _read(
        self, request: generation_pb2.GenerateRequest, answer: Answer, timeout_s: float
    ) -> Generator[Chunk]:
        call = self._stub.Generate(request, timeout=timeout_s)
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
    """

    def __init__(
        self, address: str, *, timeout_s: float = 600.0, max_resumes: int = MAX_RESUMES
    ) -> None:
        check_text("address", address)
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = generation_pb2_grpc.GenerationServiceStub(self._channel)
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
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Chunk]:
        """See `Client.stream`. Close it (`contextlib.aclosing`) to cancel the request."""
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
            )
            call = self._stub.Generate(request, timeout=timeout_s or self._timeout_s)
            try:
                with errors_of(answer):
                    async for message in call:
                        yield answer.take(message)
                answer.check_end()
                return
            except ClientError as error:
                if not _may_resume(error, answer, resumes, self._max_resumes):
                    raise
            finally:
                call.cancel()
            await asyncio.sleep(pause_s(resumes))

    async def cancel(self, request_id: str) -> bool:
        """See `Client.cancel`."""
        check_text("request_id", request_id)
        request = generation_pb2.CancelRequestRequest(request_id=request_id)
        with errors_of():
            return (await self._stub.CancelRequest(request, timeout=SHORT_CALL_S)).found

    async def tokenize(self, text: str) -> list[int]:
        """See `Client.tokenize`."""
        check_text("text", text)
        request = generation_pb2.TokenizeRequest(text=text)
        with errors_of():
            return list((await self._stub.Tokenize(request, timeout=SHORT_CALL_S)).token_ids)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """See `Client.detokenize`."""
        check_token_ids("token_ids", token_ids)
        request = generation_pb2.DetokenizeRequest(token_ids=token_ids)
        with errors_of():
            return (await self._stub.Detokenize(request, timeout=SHORT_CALL_S)).text

    async def models(self) -> list[str]:
        """See `Client.models`."""
        request = generation_pb2.ListModelsRequest()
        with errors_of():
            answer = await self._stub.ListModels(request, timeout=SHORT_CALL_S)
        return [model.id for model in answer.models]

    async def close(self) -> None:
        """Closes the connection; running streams are cancelled."""
        await self._channel.close()


class HasProgress(Protocol):
    """An answer that knows how far it came."""

    last_seq: int


def pause_s(resumes: int) -> float:
    """Seconds to wait before a broken stream is resumed once more."""
    return _PAUSES_S[min(resumes, len(_PAUSES_S) - 1)]


@contextmanager
def errors_of(answer: HasProgress | None = None) -> Iterator[None]:
    """Turns a failed call into a ClientError."""
    try:
        yield
    except grpc.RpcError as error:
        last_seq = answer.last_seq if answer is not None else 0
        # Pairs in both kinds of calls; the stubs know only the class of the blocking one.
        trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
        raise from_call(error.code(), error.details(), trailers, last_seq=last_seq) from error


def _may_resume(error: ClientError, answer: Answer, resumes: int, max_resumes: int) -> bool:
    """Whether to send the call again: only what broke on the way, and only so often.

    A duplicate id right after a break is our own call that the server has not seen end yet; as the
    first answer it is a mistake of the caller.
    """
    if answer.is_complete or resumes >= max_resumes:
        return False
    if error.reason == "DUPLICATE_REQUEST":
        return resumes > 0
    return error.is_resumable
