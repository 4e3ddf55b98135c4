"""The call by which decode reads a hand-off ahead, open beside the prefill that computes it.

It can save time and never costs a request: nobody waits for it, its failure is only told, and a
member that does not know the call leaves everything to the ticket. What is said while it is busy is
put together: only the newest count matters. One failure is more than that: decode found a damaged
block and took it away, so the attempt is over, and the next one must not trust what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import grpc.aio

from disagg.v1 import decode_pb2, decode_pb2_grpc
from runtime.errors import Corrupt, DisaggError, Reason, Unavailable
from runtime.status import from_rpc_error
from runtime.telemetry import NO_SPAN, Span


class Prefetch(Protocol):
    """An open call; event loop."""

    def stored(self, num_blocks: int) -> None:
        """The first so many blocks can be read; at once."""
        ...

    def finish(self) -> None:
        """No more blocks will be told; the decode call follows."""
        ...

    async def failure(self, *, wait_s: float = 0.0) -> DisaggError | None:
        """Why it failed, if it did, or does within some time."""
        ...

    def close(self) -> None:
        """Ends the call."""
        ...


class GrpcPrefetch:
    """`Prefetch` over gRPC.

    Args:
        begin: Whose hand-off it is.
        timeout_s: Deadline of the call.
        span: Of the call; ends with it.
    """

    def __init__(
        self,
        stub: decode_pb2_grpc.DecodeServiceAsyncStub,
        begin: decode_pb2.PrefetchBegin,
        *,
        timeout_s: float,
        span: Span = NO_SPAN,
    ) -> None:
        self._newest = 0
        self._is_finished = False
        self._is_closed = False
        self._failure: DisaggError | None = None
        self._changed = asyncio.Event()
        self._call = stub.Prefetch(
            self._messages(begin), timeout=timeout_s, metadata=span.headers()
        )
        # Whatever ended it, and whoever asks for its outcome; the server's span has the status.
        self._call.add_done_callback(lambda _: span.end())

    def stored(self, num_blocks: int) -> None:
        """See `Prefetch.stored`."""
        self._newest = max(self._newest, num_blocks)
        self._changed.set()

    def finish(self) -> None:
        """See `Prefetch.finish`."""
        self._is_finished = True
        self._changed.set()

    async def failure(self, *, wait_s: float = 0.0) -> DisaggError | None:
        """See `Prefetch.failure`."""
        if self._is_closed:
            return self._failure
        if wait_s and not self._call.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._call.code()
        if self._failure is None and self._call.done():
            self._failure = await self._outcome()
        return self._failure

    def close(self) -> None:
        """See `Prefetch.close`."""
        self._is_closed = True
        if not self._call.done():
            self._call.cancel()

    async def _outcome(self) -> DisaggError | None:
        try:
            await self._call
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC reports a call that broke while it was written to as cancelled.
            return Unavailable("the prefetch broke off", reason=Reason.PEER_GONE)
        return None

    async def _messages(
        self, begin: decode_pb2.PrefetchBegin
    ) -> AsyncIterator[decode_pb2.PrefetchRequest]:
        yield decode_pb2.PrefetchRequest(begin=begin)
        told = 0
        while not self._is_finished or self._newest > told:
            if self._newest > told:
                told = self._newest
                stored = decode_pb2.PrefetchStored(num_blocks=told)
                yield decode_pb2.PrefetchRequest(stored=stored)
                continue
            self._changed.clear()
            await self._changed.wait()


class ReadAhead:
    """The prefetch of one attempt, opened when there is something to read. Event loop.

    Args:
        open_call: Makes the call.
        on_corrupt: Told before damage is raised: it is a failure of decode's, not of the prefill
            that runs meanwhile.
    """

    def __init__(self, open_call: Callable[[], Prefetch], on_corrupt: Callable[[], None]) -> None:
        self._open_call = open_call
        self._on_corrupt = on_corrupt
        self._call: Prefetch | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a call to close."""
        return self._call is not None

    def stored(self, num_blocks: int) -> None:
        """The first so many blocks of the hand-off can be read."""
        if self._call is None:
            self._call = self._open_call()
        self._call.stored(num_blocks)

    def finish(self) -> None:
        """The ticket is here, or there will be none."""
        if self._call is not None:
            self._call.finish()

    async def raise_if_corrupt(self, *, wait_s: float = 0.0) -> None:
        """Raises Corrupt if decode found a damaged block, or does within some time."""
        if self._call is not None:
            failure = await self._call.failure(wait_s=wait_s)
            if isinstance(failure, Corrupt):
                self._on_corrupt()
                raise failure

    async def close(self) -> DisaggError | None:
        """Ends the call if there is one; why it had failed before, if it had.

        A slot that its sequence took first is no failure: there was little to read ahead. Decode
        counts that.
        """
        call, self._call = self._call, None
        if call is None:
            return None
        failure = await call.failure()
        call.close()
        if failure is not None and failure.reason is Reason.LEASE_LOST:
            return None
        return failure
