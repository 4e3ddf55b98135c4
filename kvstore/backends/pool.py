"""Connections to one server, kept and shared by threads.

Invariant: a connection that failed, or that a caller left in the middle, is never handed out again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from kvstore.backends.base import OnBytes, Place
from kvstore.backends.resp import (
    Command,
    Connection,
    OnReply,
    ProtocolError,
    Reply,
    ReplyError,
)
from kvstore.backends.transport import open_transport, password_of
from kvstore.config import KvStoreConfig, StoreUrl
from kvstore.errors import StoreDown


class RespPool:
    """Connections to one server, shared by threads; idle ones are kept up to a limit.

    Args:
        url: The server.
        config: Settings.
        locate: Asked at each connect for the server, if it may change; None is always `url`.
    """

    def __init__(
        self,
        url: StoreUrl,
        config: KvStoreConfig,
        *,
        locate: Callable[[], StoreUrl] | None = None,
    ) -> None:
        self._url = url
        self._config = config
        self._locate = locate
        self._idle: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def run(
        self,
        commands: Iterable[Command],
        on_reply: OnReply,
        *,
        place: Place | None = None,
        depth: int = 16,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """Runs commands on one connection; see `Connection.run`.

        Raises:
            StoreDown: No connection, no answer in time, or an answer that is not RESP.
        """
        connection = self._take() or self._connect()
        try:
            connection.run(commands, on_reply, depth, place, on_bytes)
        except (OSError, ProtocolError) as error:
            connection.close()
            raise StoreDown(self._url.address, _describe(error)) from error
        except BaseException:
            connection.close()
            raise
        self._give(connection)

    def close(self) -> None:
        """Closes all idle connections; busy ones are closed when they come back."""
        with self._lock:
            self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Closes all idle connections: the next call opens a new one."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for connection in idle:
            connection.close()

    def _take(self) -> Connection | None:
        """A kept connection, unless it died meanwhile, with a server that restarted for example."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_idle():
                return connection
            connection.close()

    def _give(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < self._config.max_connections:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> Connection:
        server = self._locate() if self._locate is not None else self._url
        try:
            password = password_of(self._url, self._config)
            connection = Connection(open_transport(server, self._config))
        except OSError as error:
            raise StoreDown(self._url.address, _describe(error)) from error
        greeting: list[Command] = []
        if password:
            user = [self._url.username.encode()] if self._url.username else []
            greeting.append([b"AUTH", *user, password.encode()])
        if self._url.database:
            greeting.append([b"SELECT", str(self._url.database).encode()])

        def check(_idx: int, reply: Reply | ReplyError) -> None:
            if isinstance(reply, ReplyError):
                raise StoreDown(self._url.address, f"greeting refused: {reply}")

        try:
            connection.run(greeting, check, len(greeting))
        except (OSError, ProtocolError) as error:
            connection.close()
            raise StoreDown(self._url.address, _describe(error)) from error
        except BaseException:
            connection.close()
            raise
        return connection


def _describe(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
