"""Connections and calls of the HTTP door within bounds, so that probes get in whatever others do.

A connection that has not sent the head of a request yet is worth little: it has a time limit, and
the one that waits longest makes room when there are too many. So thousands of sockets that trickle
bytes push one another out, and keep nobody else from `/health`. Calls in progress are bounded too;
beyond the bound only pages for probes are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from balancer.http.access import OPEN_PATHS
from balancer.http.errors import problem_of
from runtime.errors import Overloaded, Reason

_SPARE = 32  # connections beyond the calls that are allowed: for probes
_RETRY_AFTER_S = 1.0


class Doorkeeper:
    """The connections whose next request is not there yet, oldest first; one event loop.

    Args:
        max_connections: Beyond this the oldest of them is closed for each new connection.
        head_timeout_s: How long one of them may wait.
        on_drop: Told of each that is closed, with `slow_head` or `too_many_connections`.
    """

    def __init__(
        self, *, max_connections: int, head_timeout_s: float, on_drop: Callable[[str], None]
    ) -> None:
        self._max_connections = max_connections
        self._head_timeout_s = head_timeout_s
        self._on_drop = on_drop
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}

    def arrived(self, connection: Connection, num_connections: int) -> None:
        """A new connection; `num_connections` counts it."""
        self.waits(connection)
        if num_connections > self._max_connections:
            self._drop(next(iter(self._waiting)), "too_many_connections")

    def waits(self, connection: Connection) -> None:
        """Its next request is awaited; no effect if it was already."""
        if connection not in self._waiting:
            loop = asyncio.get_running_loop()
            self._waiting[connection] = loop.call_later(
                self._head_timeout_s, self._drop, connection, "slow_head"
            )

    def waits_no_more(self, connection: Connection) -> None:
        """The head of its request is complete, or it is closed."""
        if (timer := self._waiting.pop(connection, None)) is not None:
            timer.cancel()

    def _drop(self, connection: Connection, why: str) -> None:
        self.waits_no_more(connection)
        self._on_drop(why)
        connection.transport.abort()


class Connection(H11Protocol):
    """One connection as uvicorn serves it, known to a doorkeeper while it waits for a request."""

    def __init__(self, doorkeeper: Doorkeeper, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._doorkeeper = doorkeeper

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._doorkeeper.arrived(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._doorkeeper.waits_no_more(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """See uvicorn."""
        super().on_response_complete()
        self._look()

    def _look(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        is_served = cycle is not None and not cycle.response_complete
        if is_served or self.transport.is_closing():
            self._doorkeeper.waits_no_more(self)
        else:
            self._doorkeeper.waits(self)


def connections(
    *, max_calls: int, head_timeout_s: float, on_drop: Callable[[str], None]
) -> Callable[..., Connection]:
    """Makes the connections of one server; for uvicorn's `http`."""
    doorkeeper = Doorkeeper(
        max_connections=max_calls + _SPARE, head_timeout_s=head_timeout_s, on_drop=on_drop
    )

    def connection(**arguments: Any) -> Connection:
        return Connection(doorkeeper, **arguments)

    return connection


class CallLimit:
    """An ASGI application around another: so many calls at once, and pages for probes anyway.

    Args:
        on_refuse: Told of each call beyond them, with `too_many_calls`.
    """

    def __init__(self, app: ASGIApp, max_calls: int, on_refuse: Callable[[str], None]) -> None:
        self._app = app
        self._max_calls = max_calls
        self._on_refuse = on_refuse
        self._num_calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one call; see ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._num_calls >= self._max_calls:
            self._on_refuse("too_many_calls")
            problem = problem_of(
                Overloaded(
                    f"{self._num_calls} calls run here, the most there may be "
                    f"(http.max_connections); try again in {_RETRY_AFTER_S:g} s",
                    reason=Reason.QUEUE_FULL,
                    retry_after_s=_RETRY_AFTER_S,
                )
            )
            answer = JSONResponse(problem.body, problem.status, problem.headers)
            await answer(scope, receive, send)
            return
        self._num_calls += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_calls -= 1
