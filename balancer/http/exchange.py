"""One HTTP call between its request and its answer: body, disconnect, events, errors.

    read ──► wait for tokens ──► answer: JSON, or events until the end
              │ the caller leaves, at any point: what runs for it is cancelled

The answer of a stream begins with the first token, so that what fails before it has a status of
its own. A call that is silent for long gets a comment line first; from then on its errors are
events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from balancer.http.errors import HttpError, Problem

_EVENT_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class CallerGone(Exception):
    """The caller closed the connection before its answer was complete."""


class Exchange:
    """See the module; used by one task and those below it.

    Args:
        keep_alive_s: A stream that is silent this long gets a comment line.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, keep_alive_s: float) -> None:
        self.headers = Headers(scope=scope)
        self.answer_headers: dict[str, str] = {}
        self.status = 0
        self._receive = receive
        self._send = send
        self._keep_alive_s = keep_alive_s
        self._lock = asyncio.Lock()
        self._num_sent = 0
        self._is_ended = False

    @property
    def has_begun(self) -> bool:
        """Whether status and headers are out."""
        return self.status != 0

    async def read(self, *, max_bytes: int, timeout_s: float) -> bytes:
        """The body.

        Raises:
            HttpError: It is too long, or does not arrive in time.
            CallerGone: The caller left.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        length = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise CallerGone
                    part: bytes = message.get("body", b"")
                    length += len(part)
                    if length > max_bytes:
                        raise _too_large(max_bytes)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as error:
            raise HttpError(
                408,
                "request_timeout",
                f"body: it did not arrive within {timeout_s:g} s; send it faster",
            ) from error

    async def while_connected(
        self, work: Callable[[], Awaitable[None]], *, is_stream: bool
    ) -> None:
        """Runs `work`; cancels it when the caller leaves.

        Raises:
            CallerGone: The caller left.
        """
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(self._watch())
                keeper = group.create_task(self._keep_alive()) if is_stream else None
                try:
                    await work()
                finally:
                    watcher.cancel()
                    if keeper is not None:
                        keeper.cancel()
        except BaseExceptionGroup as errors:
            # One cause explains the end better than the group it came in.
            raise errors.exceptions[0] from errors

    async def json(self, value: object, *, status: int = 200) -> None:
        """The whole answer."""
        await self._whole(_encode(value).encode("utf-8"), status, "application/json")

    async def problem(self, problem: Problem) -> None:
        """An error: as an answer, or as the last event of a stream that has begun."""
        if self._is_ended:
            return
        if self.has_begun:
            await self.event(problem.body)
            await self._end()
            return
        self.answer_headers |= problem.headers
        await self.json(problem.body, status=problem.status)

    async def event(self, value: object) -> None:
        """One event of a stream; waits while the caller reads slowly."""
        await self._write(f"data: {_encode(value)}\n\n".encode())

    async def done(self) -> None:
        """The end of a stream that has all its events."""
        await self._write(b"data: [DONE]\n\n")
        await self._end()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise CallerGone

    async def _keep_alive(self) -> None:
        while True:
            num_sent = self._num_sent
            await asyncio.sleep(self._keep_alive_s)
            if num_sent == self._num_sent and not self._is_ended:
                await self._write(b": keep-alive\n\n")

    async def _write(self, data: bytes) -> None:
        # Start and first piece are two messages, and a comment must not come between them.
        async with self._lock:
            if not self.has_begun:
                await self._begin(200, _EVENT_HEADERS)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._num_sent += 1

    async def _end(self) -> None:
        async with self._lock:
            self._is_ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _whole(self, data: bytes, status: int, content_type: str) -> None:
        async with self._lock:
            headers = {"content-type": content_type, "content-length": str(len(data))}
            await self._begin(status, headers)
            self._is_ended = True
            await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        pairs = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in {**headers, **self.answer_headers}.items()
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(
        413, "request_too_large", f"body: longer than {max_bytes} bytes; send a shorter one"
    )
