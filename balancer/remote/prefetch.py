"""The call by which decode reads a hand-off ahead, open beside the prefill that computes it.

It can save time and never costs a request: nobody waits for it, its failure is only told, and a
member that does not know the call leaves everything to the ticket. What is said while it is busy is
put together: only the newest count matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import grpc
import grpc.aio

from disagg.v1 import decode_pb2, decode_pb2_grpc
from runtime.errors import Reason
from runtime.status import from_rpc_error


class Prefetch(Protocol):
    """An open call; event loop."""

    def stored(self, num_blocks: int) -> None:
        """The first so many blocks can be read; at once."""
        ...

    def finish(self) -> None:
        """No more blocks will be told; the decode call follows."""
        ...

    async def close(self) -> str:
        """Ends the call; why it had failed before, as a label, empty if it had not."""
        ...


class GrpcPrefetch:
    """`Prefetch` over gRPC.

    Args:
        begin: Whose hand-off it is.
        timeout_s: Deadline of the call.
    """

    def __init__(
        self,
        stub: decode_pb2_grpc.DecodeServiceAsyncStub,
        begin: decode_pb2.PrefetchBegin,
        *,
        timeout_s: float,
    ) -> None:
        self._newest = 0
        self._is_finished = False
        self._changed = asyncio.Event()
        self._call = stub.Prefetch(self._messages(begin), timeout=timeout_s)

    def stored(self, num_blocks: int) -> None:
        """See `Prefetch.stored`."""
        self._newest = max(self._newest, num_blocks)
        self._changed.set()

    def finish(self) -> None:
        """See `Prefetch.finish`."""
        self._is_finished = True
        self._changed.set()

    async def close(self) -> str:
        """See `Prefetch.close`."""
        if not self._call.done():
            self._call.cancel()
            return ""
        try:
            await self._call
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return "unknown_call"  # a member of an older release
            return from_rpc_error(error).reason.lower()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC reports a call that broke while it was written to as cancelled.
            return Reason.PEER_GONE.lower()
        return ""

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
    """

    def __init__(self, open_call: Callable[[], Prefetch]) -> None:
        self._open_call = open_call
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

    async def close(self) -> str:
        """Ends the call if there is one; see `Prefetch.close`."""
        call, self._call = self._call, None
        return "" if call is None else await call.close()
