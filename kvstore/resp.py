"""Block bytes over the Redis protocol without copies: RESP2, pipelined, scatter and gather.

Requests leave by `sendmsg` straight from the caller's buffers; values arrive by `recvmsg_into`
straight in theirs. Only what this path needs is spoken: simple strings, errors, integers and bulk
strings; scripts and administration go through redis-py. Over TLS the same parser runs on copies.

The reader trusts nothing: lines and values have limits, anything else ends the connection.

Invariant: a connection is either in step (every command answered) or closed.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

from kvstore.backends.base import Allocate
from kvstore.config import StoreUrl
from kvstore.errors import StoreDown
from kvstore.keys import HEADER_BYTES, MAX_SEGMENT_BYTES, Buffer, flat_view

MAX_LINE_BYTES = 4096
MAX_VALUE_BYTES = MAX_SEGMENT_BYTES + HEADER_BYTES
_MAX_IOVECS = 512  # Linux takes 1024
_INLINE_BYTES = 1024  # shorter arguments are copied into the piece around them
_SPILL_BYTES = 512  # read behind a value in the same call: the head of the next reply
_SOCKET_BUFFER_BYTES = 1 << 20

Reply = int | bytes | memoryview | None
Command = Sequence[Buffer | tuple[Buffer, ...]]
"""Name and arguments; an argument in several parts is a tuple, sent as one string."""


class ProtocolError(Exception):
    """The peer sent something that is not RESP2 or exceeds a limit."""


class ReplyError(Exception):
    """An error reply of the server; the connection stays in step."""


class Transport(Protocol):
    """A connected byte stream with a timeout on every call."""

    def receive(self, buffers: list[memoryview]) -> int:
        """Fills the buffers in order as far as bytes are there; 0 at the end of the stream."""
        ...

    def send(self, parts: list[Buffer]) -> None:
        """Sends all parts."""
        ...

    def is_idle(self) -> bool:
        """Whether there is neither a byte to read nor an end of the stream."""
        ...

    def close(self) -> None:
        """Ends the stream."""
        ...


class SocketTransport:
    """Plain socket, unix or TCP. Timeouts are the kernel's, so a call is one system call."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        sock.settimeout(None)
        timeval = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
        self._sock = sock

    def receive(self, buffers: list[memoryview]) -> int:
        """See `Transport`. Raises OSError; BlockingIOError when the time is up."""
        return self._sock.recvmsg_into(buffers)[0]

    def send(self, parts: list[Buffer]) -> None:
        """See `Transport`."""
        start = 0
        while start < len(parts):
            batch = parts[start : start + _MAX_IOVECS]
            sent = self._sock.sendmsg(batch)
            for count, part in enumerate(batch):
                size = len(part)
                if sent < size:
                    parts[start + count] = memoryview(part)[sent:]
                    break
                sent -= size
            else:
                count = len(batch)
            start += count

    def is_idle(self) -> bool:
        """See `Transport`."""
        return _is_silent(self._sock)

    def close(self) -> None:
        """See `Transport`."""
        self._sock.close()


class TlsTransport:
    """TLS stream; the library has no scatter and gather, so parts go one by one."""

    def __init__(self, sock: ssl.SSLSocket, timeout_s: float) -> None:
        sock.settimeout(timeout_s)
        self._sock = sock

    def receive(self, buffers: list[memoryview]) -> int:
        """See `Transport`."""
        return self._sock.recv_into(buffers[0])

    def send(self, parts: list[Buffer]) -> None:
        """See `Transport`."""
        for part in parts:
            self._sock.sendall(part)

    def is_idle(self) -> bool:
        """See `Transport`."""
        return _is_silent(self._sock)

    def close(self) -> None:
        """See `Transport`."""
        self._sock.close()


class ReplyReader:
    """Bounded parser of replies from a stream.

    Args:
        receive: Fills buffers as `Transport.receive` does.
        max_value_bytes: Longest bulk string that is accepted.
    """

    def __init__(
        self,
        receive: Callable[[list[memoryview]], int],
        *,
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        self._receive = receive
        self._max_value_bytes = max_value_bytes
        self._buffer = bytearray(2 * MAX_LINE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # unread bytes are _buffer[_start:_end]

    def read(self, allocate: Allocate = bytearray) -> Reply:
        """The next reply.

        Returns:
            An integer, a simple string (bytes), a bulk string (view of allocated memory) or None.

        Raises:
            ReplyError: The reply is an error.
            ProtocolError: The stream is not RESP2, is too long, or ended.
        """
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return self._bulk(_integer(rest), allocate)
        if kind == b":":
            return _integer(rest)
        if kind == b"+":
            return rest
        if kind == b"-":
            raise ReplyError(rest.decode("ascii", "replace"))
        raise ProtocolError(f"reply starts with {kind!r}")

    def _line(self) -> bytes:
        while True:
            stop = self._buffer.find(b"\r\n", self._start, self._end)
            if stop >= 0:
                line = bytes(self._view[self._start : stop])
                self._start = stop + 2
                if len(line) > MAX_LINE_BYTES:
                    raise ProtocolError("reply line is too long")
                return line
            size = self._end - self._start
            if size > MAX_LINE_BYTES + 1:
                raise ProtocolError("reply line is too long")
            if self._start:
                self._view[:size] = bytes(self._view[self._start : self._end])
                self._start, self._end = 0, size
            self._end += self._more([self._view[self._end :]])

    def _bulk(self, num_bytes: int, allocate: Allocate) -> memoryview | None:
        if num_bytes == -1:
            return None
        if not 0 <= num_bytes <= self._max_value_bytes:
            raise ProtocolError(f"value of {num_bytes} bytes, limit {self._max_value_bytes}")
        value = flat_view(allocate(num_bytes))
        if len(value) < num_bytes:
            raise ValueError(f"allocate({num_bytes}) gave {len(value)} bytes")
        value = value[:num_bytes]
        filled = min(num_bytes, self._end - self._start)
        if filled:
            value[:filled] = self._view[self._start : self._start + filled]
            self._start += filled
        if filled < num_bytes:
            self._start = self._end = 0
            spill = self._view[:_SPILL_BYTES]
            while filled < num_bytes:
                filled += self._more([value[filled:], spill])
            self._end = filled - num_bytes
        while self._end - self._start < 2:
            if self._start == self._end:
                self._start = self._end = 0
            self._end += self._more([self._view[self._end :]])
        if self._buffer[self._start : self._start + 2] != b"\r\n":
            raise ProtocolError("value does not end where its length says")
        self._start += 2
        return value

    def _more(self, buffers: list[memoryview]) -> int:
        count = self._receive(buffers)
        if count <= 0:
            raise ProtocolError("the server closed the connection")
        return count


class Connection:
    """One connection in step. Not thread-safe: a pool hands it to one caller at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._reader = ReplyReader(transport.receive)

    def is_idle(self) -> bool:
        """Whether nothing is to be read: bytes or an end of the stream mean it is out of step."""
        return self._transport.is_idle()

    def run(
        self,
        commands: Iterable[Command],
        on_reply: Callable[[int, Reply | ReplyError], None],
        allocate: Allocate,
        depth: int,
    ) -> None:
        """Sends commands with at most `depth` unanswered and calls back with each reply in order.

        Commands are taken from the iterable as they are sent, so that the caller prepares later
        ones while the server works on earlier ones.

        Raises:
            OSError, ProtocolError: The connection is out of step; close it.
        """
        source = iter(commands)
        sent = received = 0
        is_exhausted = False
        while True:
            if not is_exhausted and sent - received <= depth // 2:
                batch = list(islice(source, depth - (sent - received)))
                is_exhausted = not batch
                if batch:
                    self._transport.send(encode(batch))
                    sent += len(batch)
            if received == sent:
                return
            reply: Reply | ReplyError
            try:
                reply = self._reader.read(allocate)
            except ReplyError as error:
                reply = error
            on_reply(received, reply)
            received += 1

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()


def encode(commands: Iterable[Command]) -> list[Buffer]:
    """Commands as parts to send: small pieces joined, large arguments by reference."""
    parts: list[Buffer] = []
    small: list[bytes] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            if isinstance(argument, bytes) and len(argument) < _INLINE_BYTES:
                small.append(b"$%d\r\n%s\r\n" % (len(argument), argument))
                continue
            pieces = argument if isinstance(argument, tuple) else (argument,)
            views = [flat_view(piece) for piece in pieces]
            small.append(b"$%d\r\n" % sum(map(len, views)))
            for view in views:
                if len(view) < _INLINE_BYTES:
                    small.append(bytes(view))
                else:
                    parts += (b"".join(small), view)
                    small = []
            small.append(b"\r\n")
    parts.append(b"".join(small))
    return parts


class RespPool:
    """Connections to one server, shared by threads; idle ones are kept up to a limit."""

    def __init__(self, url: StoreUrl, *, timeout_s: float, max_idle: int) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._max_idle = max_idle
        self._idle: deque[Connection] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def run(
        self,
        commands: Iterable[Command],
        on_reply: Callable[[int, Reply | ReplyError], None],
        *,
        allocate: Allocate = bytearray,
        depth: int = 16,
    ) -> None:
        """Runs commands on one connection; see `Connection.run`.

        Raises:
            StoreDown: No connection, no answer in time, or an answer that is not RESP.
        """
        connection = self._take() or self._connect()
        try:
            connection.run(commands, on_reply, allocate, depth)
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
            if not self._closed and len(self._idle) < self._max_idle:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> Connection:
        try:
            connection = Connection(open_transport(self._url, self._timeout_s))
        except OSError as error:
            raise StoreDown(self._url.address, _describe(error)) from error
        greeting: list[Command] = []
        if self._url.password:
            user = [self._url.username.encode()] if self._url.username else []
            greeting.append([b"AUTH", *user, self._url.password.encode()])
        if self._url.database:
            greeting.append([b"SELECT", str(self._url.database).encode()])

        def check(_idx: int, reply: Reply | ReplyError) -> None:
            if isinstance(reply, ReplyError):
                raise StoreDown(self._url.address, f"greeting refused: {reply}")

        try:
            connection.run(greeting, check, bytearray, len(greeting))
        except (OSError, ProtocolError) as error:
            connection.close()
            raise StoreDown(self._url.address, _describe(error)) from error
        except BaseException:
            connection.close()
            raise
        return connection


def open_transport(url: StoreUrl, timeout_s: float) -> Transport:
    """A connected transport for a URL. Raises OSError."""
    if url.scheme == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(url.path)
            return SocketTransport(sock, timeout_s)
        except BaseException:
            sock.close()
            raise
    sock = socket.create_connection((url.host, url.port), timeout=timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if url.scheme == "rediss":
            context = ssl.create_default_context()
            return TlsTransport(context.wrap_socket(sock, server_hostname=url.host), timeout_s)
        return SocketTransport(sock, timeout_s)
    except BaseException:
        sock.close()
        raise


def _is_silent(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


def _integer(text: bytes) -> int:
    # int() alone would take spaces, underscores and thousands of digits.
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(digits) > 19:
        raise ProtocolError(f"{text[:32]!r} is not an integer")
    return int(text)


def _describe(error: Exception) -> str:
    if isinstance(error, BlockingIOError | TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
