"""What every client is: pieces of an answer as a stream, or the whole of it; closed when left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from client.types import Chunk, Completion, Prompt, Sampling, Targets
from client.wire import completion_of


class Generating(ABC):
    """A blocking client; a context manager."""

    @abstractmethod
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
        """Yields the answer piece by piece.

        Args:
            request_id: Chosen here if empty.
            last_seq: Resume: tokens up to this number were received before.
            targets: What placement aims at; absent: what the service aims at.

        Raises:
            InvalidArgument: A value that cannot be sent; nothing was.
            ClientError: The request failed; `last_seq` of the error tells how far it came.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the connections; running streams are cancelled."""

    def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        model: str = "",
        sampling: Sampling | None = None,
        cache_salt: str = "",
        priority: int | None = None,
        targets: Targets | None = None,
        timeout_s: float | None = None,
    ) -> Completion:
        """The whole answer; arguments and errors as for `stream`."""
        stream = self.stream(
            prompt,
            request_id=request_id,
            model=model,
            sampling=sampling,
            cache_salt=cache_salt,
            priority=priority,
            targets=targets,
            timeout_s=timeout_s,
        )
        return completion_of(list(stream))

    def __enter__(self) -> Self:
        """Nothing to do: connections are made with the first calls."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `close`."""
        self.close()


class AsyncGenerating(ABC):
    """A client for asyncio; a context manager."""

    @abstractmethod
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
    ) -> AsyncGenerator[Chunk]:
        """See `Generating.stream`. Close it (`contextlib.aclosing`) to cancel the request."""

    @abstractmethod
    async def close(self) -> None:
        """See `Generating.close`."""

    async def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        model: str = "",
        sampling: Sampling | None = None,
        cache_salt: str = "",
        priority: int | None = None,
        targets: Targets | None = None,
        timeout_s: float | None = None,
    ) -> Completion:
        """See `Generating.generate`."""
        stream = self.stream(
            prompt,
            request_id=request_id,
            model=model,
            sampling=sampling,
            cache_salt=cache_salt,
            priority=priority,
            targets=targets,
            timeout_s=timeout_s,
        )
        async with aclosing(stream) as chunks:
            return completion_of([chunk async for chunk in chunks])

    async def __aenter__(self) -> Self:
        """Nothing to do: connections are made with the first calls."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `close`."""
        await self.close()
