"""Block bytes over the Redis protocol without copies: RESP2, pipelined, scatter and gather.

Requests leave by `sendmsg` straight from the caller's buffers; values arrive by `recvmsg_into`
straight in theirs. Only what this path needs is spoken: simple strings, errors, integers and bulk
strings; scripts and administration go through redis-py. Over TLS the same parser runs on copies.

The reader trusts nothing: lines and values have limits, anything else ends the connection.

Invariant: a connection is either in step (every command answered) or closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kvstore.backends.base import Allocate, OnBytes, Place
from kvstore.backends.transport import Transport
from kvstore.buffers import Buffer, flat_view, new_buffer
from kvstore.headers import HEADER_BYTES, MAX_SEGMENT_BYTES

MAX_LINE_BYTES = 4096
MAX_VALUE_BYTES = MAX_SEGMENT_BYTES + HEADER_BYTES
_INLINE_BYTES = 1024  # shorter arguments are copied into the piece around them
_SPILL_BYTES = 512  # read behind a value in the same call: the head of the next reply
# Large arguments are sent once this much has come together: while their bytes are still in the
# cache from being hashed, and early enough for the server to work meanwhile.
_EAGER_BYTES = 128 << 10

Reply = int | bytes | memoryview | None


class Encoded(NamedTuple):
    """A command with one large argument, encoded by the caller: sent as is, one after the other."""

    head: bytes
    large: memoryview
    tail: bytes


Command = bytes | Encoded | Sequence[Buffer | tuple[Buffer, ...]]
"""Name and arguments; one in several parts is a tuple, sent as one string. Bytes are sent as is."""
OnReply = Callable[[int, "Reply | ReplyError"], None]


class ProtocolError(Exception):
    """The peer sent something that is not RESP2 or exceeds a limit."""


class ReplyError(Exception):
    """An error reply of the server; the connection stays in step."""


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

    def read(self, allocate: Allocate = new_buffer, on_bytes: OnBytes | None = None) -> Reply:
        """The next reply; `on_bytes` is told how much of a bulk string is there until all of it is.

        Returns:
            An integer, a simple string (bytes), a bulk string (view of allocated memory) or None.

        Raises:
            ReplyError: The reply is an error.
            ProtocolError: The stream is not RESP2, is too long, or ended.
        """
        line = self._line()
        kind = line[:1]
        if kind == b"$":
            return self._bulk(_integer(line[1:]), allocate, on_bytes)
        if kind == b":":
            return _integer(line[1:])
        if kind == b"+":
            return line[1:]
        if kind == b"-":
            raise ReplyError(line[1:].decode("ascii", "replace"))
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

    def _bulk(
        self, num_bytes: int, allocate: Allocate, on_bytes: OnBytes | None
    ) -> memoryview | None:
        if num_bytes == -1:
            return None
        if not 0 <= num_bytes <= self._max_value_bytes:
            raise ProtocolError(f"value of {num_bytes} bytes, limit {self._max_value_bytes}")
        value = flat_view(allocate(num_bytes))
        if len(value) < num_bytes:
            raise ValueError(f"allocate({num_bytes}) gave {len(value)} bytes")
        if len(value) > num_bytes:
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
                if on_bytes is not None and filled < num_bytes:
                    on_bytes(filled)
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


class Encoder:
    """Commands as parts to send: small pieces joined, large arguments by reference."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._small: list[bytes] = []
        self.large_bytes = 0
        """Bytes held by reference."""

    def add(self, command: Command) -> None:
        """Adds one command."""
        small = self._small
        if isinstance(command, bytes):
            small.append(command)
            return
        if isinstance(command, Encoded):
            small.append(command.head)
            self._add_view(command.large)
            small.append(command.tail)
            return
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            if isinstance(argument, bytes) and len(argument) < _INLINE_BYTES:
                small.append(b"$%d\r\n%s\r\n" % (len(argument), argument))
                continue
            pieces = argument if isinstance(argument, tuple) else (argument,)
            views = [flat_view(piece) for piece in pieces]
            small.append(b"$%d\r\n" % sum(map(len, views)))
            for view in views:
                self._add_view(view)
            small.append(b"\r\n")

    def _add_view(self, view: memoryview) -> None:
        size = len(view)
        if size < _INLINE_BYTES:
            self._small.append(bytes(view))
            return
        self._parts += (b"".join(self._small), view)
        self._small.clear()
        self.large_bytes += size

    def take(self) -> list[Buffer]:
        """What was added since the last call; empty if that is nothing."""
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small.clear()
        parts, self._parts, self.large_bytes = self._parts, [], 0
        return parts


def encode_keys(name: bytes, keys: Sequence[bytes]) -> bytes:
    """A command whose arguments are keys; quick when all are of one length, as in a chain."""
    if len(keys) == 1:
        return b"*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(name), name, len(keys[0]), keys[0])
    head = b"*%d\r\n$%d\r\n%s\r\n" % (len(keys) + 1, len(name), name)
    sizes = set(map(len, keys))
    if len(sizes) == 1:
        mark = b"$%d\r\n" % sizes.pop()
        return b"".join((head, mark, (b"\r\n" + mark).join(keys), b"\r\n"))
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(key), key) for key in keys)


def encode_set(key: bytes, parts: tuple[bytes, Buffer, bytes], life_ms: int) -> Encoded:
    """SET of a value in three parts (header, payload, trailer) if the key is free, with a life."""
    header, payload, trailer = parts
    view, life = flat_view(payload), b"%d" % life_ms
    size = len(header) + len(view) + len(trailer)
    return Encoded(
        b"*6\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s" % (len(key), key, size, header),
        view,
        b"%s\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%s\r\n" % (trailer, len(life), life),
    )


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
        on_reply: OnReply,
        depth: int,
        place: Place | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """Sends commands with at most `depth` unanswered and calls back with each reply in order.

        Commands are taken from the iterable as they are sent, so that the caller prepares later
        ones while the server works on earlier ones. Values go to the `place` of their position,
        fresh memory without one.

        Raises:
            OSError, ProtocolError: The connection is out of step; close it.
        """
        source = iter(commands)
        sent = received = 0
        is_exhausted = False

        def place_next(size: int) -> Buffer:
            return place(received, size) if place is not None else new_buffer(size)

        allocate = new_buffer if place is None else place_next
        while True:
            if not is_exhausted and sent - received <= depth // 2:
                count = self._send(source, depth - (sent - received))
                sent += count
                is_exhausted = not count
            if received == sent:
                return
            reply: Reply | ReplyError
            try:
                reply = self._reader.read(allocate, on_bytes)
            except ReplyError as error:
                reply = error
            on_reply(received, reply)
            received += 1

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()

    def _send(self, source: Iterator[Command], limit: int) -> int:
        """Sends up to `limit` commands; how many there were."""
        encoder = Encoder()
        count = 0
        for command in islice(source, limit):
            encoder.add(command)
            count += 1
            if encoder.large_bytes >= _EAGER_BYTES:
                self._transport.send(encoder.take())
        if parts := encoder.take():
            self._transport.send(parts)
        return count


def _integer(text: bytes) -> int:
    # int() alone would take spaces, underscores and thousands of digits.
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(digits) > 19:
        raise ProtocolError(f"{text[:32]!r} is not an integer")
    return int(text)
