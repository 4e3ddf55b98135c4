"""Serves an ASGI application beside the gRPC server: same process, same event loop.

uvicorn listens and speaks HTTP/1.1; signals and the order of a stop stay with `runtime.serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from balancer.config import HttpSettings
from balancer.http.access import KeyGuard
from balancer.http.connections import CallLimit, connections
from runtime.address import address_of, family_of
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.security import NO_SECURITY, Security
from runtime.serve import ListenError

_log = get_logger(__name__)


class _Server(uvicorn.Server):
    """Tells when it listens, and leaves signals alone.

    Args:
        handshake_timeout_s: What a TLS handshake may take; uvicorn would give it a minute.
    """

    def __init__(self, config: uvicorn.Config, *, handshake_timeout_s: float) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()
        self._handshake_timeout_s = handshake_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config
        make = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)

        def connection() -> asyncio.Protocol:
            return make(config=config, server_state=self.server_state, app_state={})

        self.servers = [
            await asyncio.get_running_loop().create_server(
                connection,
                sock=listener,
                ssl=config.ssl,
                ssl_handshake_timeout=self._handshake_timeout_s if config.ssl else None,
                backlog=config.backlog,
            )
            for listener in sockets or []
        ]
        self.started = True
        self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    settings: HttpSettings,
    security: Security = NO_SECURITY,
    *,
    metrics: Metrics | None = None,
) -> AsyncIterator[str]:
    """Listens while the body runs; yields the address as host:port.

    Callers need a key if `security` has some; with TLS they verify its certificate, and show none
    themselves: people have keys, parts of the system certificates.

    What is dropped or refused before the application sees it is told to `metrics`, by cause.

    Leaving the body gives the last answers `grace_s`, then cancels them.

    Raises:
        ListenError: The address is taken or not of this machine.
    """
    counted = metrics or Metrics()

    def refuse(cause: str) -> None:
        counted.count("disagg_http_refused_total", cause=cause)
        _log.debug("http.refused", cause=cause)

    listener, identity = _listen(settings), security.identity
    host, port = listener.getsockname()[:2]
    connection = connections(
        max_calls=settings.max_connections,
        head_timeout_s=settings.head_timeout_s,
        on_drop=refuse,
    )
    config = uvicorn.Config(
        CallLimit(
            app if security.keys is None else KeyGuard(app, security.keys, refuse),
            settings.max_connections,
            refuse,
        ),
        http=cast("type[asyncio.Protocol]", connection),  # called like one
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.grace_s),
        ssl_context_factory=None if identity is None else lambda *_: identity.http(),
    )
    server = _Server(config, handshake_timeout_s=settings.head_timeout_s)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]), name="http")
            await server.is_listening.wait()
            try:
                yield address_of(host, port)
            finally:
                server.should_exit = True
    except BaseExceptionGroup as errors:
        # One cause explains the end better than the group it came in.
        raise errors.exceptions[0] from errors
    finally:
        listener.close()


def _listen(settings: HttpSettings) -> socket.socket:
    listener = socket.socket(family_of(settings.host))
    try:
        # Connections of an earlier process do not hold this one up.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port or 0))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {address_of(settings.host, settings.port or 0)}: taken, or not an "
            "address of this machine; choose another --http or 0"
        ) from error
    return listener
