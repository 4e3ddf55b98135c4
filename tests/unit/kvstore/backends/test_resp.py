"""The data path against peers that answer in every possible cut, lie, stall or hang up."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvstore.backends.resp import (
    MAX_LINE_BYTES,
    Command,
    Connection,
    Encoder,
    ProtocolError,
    Reply,
    ReplyError,
    ReplyReader,
    encode_keys,
    encode_set,
)
from kvstore.buffers import Buffer


class Stream:
    """A byte stream that gives at most so many bytes a call."""

    def __init__(self, data: bytes, pieces: list[int]) -> None:
        self.data, self.pieces, self.calls = data, pieces, 0

    def receive(self, buffers: list[memoryview]) -> int:
        size = self.pieces[self.calls % len(self.pieces)] if self.pieces else len(self.data)
        self.calls += 1
        given = 0
        for buffer in buffers:
            count = min(len(buffer), size - given, len(self.data))
            buffer[:count], self.data = self.data[:count], self.data[count:]
            given += count
        return given


def read_all(data: bytes, pieces: list[int], count: int) -> list[Reply | str]:
    reader = ReplyReader(Stream(data, pieces).receive)
    replies: list[Reply | str] = []
    for _ in range(count):
        try:
            reply = reader.read()
        except ReplyError as error:
            replies.append(f"error {error}")
        else:
            replies.append(bytes(reply) if isinstance(reply, memoryview) else reply)
    return replies


def wire(reply: Reply | str) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case str():
            return b"-" + reply.removeprefix("error ").encode() + b"\r\n"
    return b"$%d\r\n%s\r\n" % (len(reply), bytes(reply))


REPLIES = st.lists(
    st.one_of(
        st.none(),
        st.integers(-(10**18), 10**18),
        st.binary(max_size=40),
        st.binary(min_size=9000, max_size=9001),
        st.sampled_from(["error OOM", "error WRONGTYPE x"]),
    ),
    max_size=8,
)


@pytest.mark.medium
@given(replies=REPLIES, pieces=st.lists(st.integers(1, 700), min_size=1, max_size=5))
def test_replies_come_back_however_the_stream_is_cut(
    replies: list[Reply | str], pieces: list[int]
) -> None:
    assert read_all(b"".join(map(wire, replies)), pieces, len(replies)) == replies


def test_simple_strings() -> None:
    assert read_all(b"+OK\r\n+\r\n", [3], 2) == [b"OK", b""]


@pytest.mark.medium
@given(data=st.binary(max_size=400), pieces=st.lists(st.integers(1, 50), min_size=1, max_size=3))
@example(data=b"$5\r\nhelloXX", pieces=[50])
@example(data=b"$-2\r\n", pieces=[50])
@example(data=b"$99999999999999999999\r\n", pieces=[50])
@example(data=b":1_0\r\n", pieces=[50])
@example(data=b": 1\r\n", pieces=[50])
@example(data=b"*1\r\n:1\r\n", pieces=[50])
@example(data=b"", pieces=[1])
def test_any_bytes_are_replies_or_a_protocol_error(data: bytes, pieces: list[int]) -> None:
    """Never another exception, never more calls than bytes, never more memory than bytes."""
    stream = Stream(data, pieces)
    reader = ReplyReader(stream.receive, max_value_bytes=1 << 16)
    allocated: list[int] = []

    def allocate(size: int) -> bytearray:
        allocated.append(size)
        return bytearray(size)

    def read_until_refused() -> None:
        for _ in range(len(data) + 1):
            with suppress(ReplyError):
                reader.read(allocate)

    with pytest.raises(ProtocolError):
        read_until_refused()
    assert stream.calls <= len(data) + 1
    assert sum(allocated) <= len(data) + (1 << 16)


@pytest.mark.parametrize(
    "data",
    [b"+" + b"x" * (MAX_LINE_BYTES + 2) + b"\r\n", b"-" + b"x" * 3 * MAX_LINE_BYTES, b"$70000\r\n"],
)
def test_limits_hold(data: bytes) -> None:
    reader = ReplyReader(Stream(data, []).receive, max_value_bytes=1 << 16)
    with pytest.raises(ProtocolError):
        reader.read()


def test_an_allocator_that_gives_too_little_is_a_bug_and_says_so() -> None:
    reader = ReplyReader(Stream(b"$5\r\nhello\r\n", []).receive)
    with pytest.raises(ValueError, match=r"allocate\(5\) gave 3"):
        reader.read(lambda _size: bytearray(3))


def test_values_are_written_where_they_belong() -> None:
    arena = bytearray(b"." * 20)
    reader = ReplyReader(Stream(b"$5\r\nhello\r\n", [4]).receive)
    value = reader.read(lambda _size: memoryview(arena)[3:11])
    assert value == b"hello"
    assert bytes(arena) == b"...hello............"


def encode(commands: list[Command]) -> list[Buffer]:
    encoder = Encoder()
    for command in commands:
        encoder.add(command)
    parts = encoder.take()
    assert encoder.take() == []
    return parts


ARGUMENTS = st.one_of(
    st.binary(max_size=50),
    st.binary(min_size=1024, max_size=1500),
    st.tuples(st.binary(max_size=64), st.binary(max_size=2000)),
)


@pytest.mark.medium
@given(st.lists(st.lists(ARGUMENTS, min_size=1, max_size=5), max_size=5))
def test_commands_are_encoded_as_the_protocol_says(commands: list[list[bytes]]) -> None:
    wanted = b""
    for command in commands:
        wanted += b"*%d\r\n" % len(command)
        for argument in command:
            whole = b"".join(argument) if isinstance(argument, tuple) else argument
            wanted += b"$%d\r\n%s\r\n" % (len(whole), whole)
    assert b"".join(map(bytes, encode(commands))) == wanted
    assert b"".join(map(bytes, encode([wanted]))) == wanted


@given(st.lists(st.binary(min_size=1, max_size=5), max_size=4))
@example([b"aa", b"bb"])
def test_keys_are_encoded_as_any_argument(keys: list[bytes]) -> None:
    assert [encode_keys(b"EXISTS", keys)] == encode([[b"EXISTS", *keys]])


@pytest.mark.parametrize("size", [0, 10, 1023, 1024, 5000])
@pytest.mark.parametrize("trailer", [b"", b"tag"])
def test_a_set_is_encoded_as_any_command(size: int, trailer: bytes) -> None:
    parts = (b"h" * 64, bytearray(size), trailer)
    plain = encode([[b"SET", b"key", parts, b"NX", b"PX", b"600"]])
    assert b"".join(map(bytes, encode([encode_set(b"key", parts, 600)]))) == b"".join(
        map(bytes, plain)
    )


def test_large_arguments_are_not_copied() -> None:
    payload = bytearray(5000)
    for command in ([b"SET", b"k", payload], encode_set(b"k", (b"", payload, b""), 1)):
        views = [part for part in encode([command]) if isinstance(part, memoryview)]
        assert [view.obj for view in views] == [payload]


def test_commands_in_flight_are_bounded() -> None:
    class Recorder:
        """Answers what was sent, and notes how much was unanswered."""

        def __init__(self) -> None:
            self.unanswered, self.most = 0, 0

        def send(self, parts: list[bytes]) -> None:
            self.unanswered += b"".join(map(bytes, parts)).count(b"*1\r\n")
            self.most = max(self.most, self.unanswered)

        def receive(self, buffers: list[memoryview]) -> int:
            assert self.unanswered > 0, "waits for a reply that nobody asked for"
            self.unanswered -= 1
            buffers[0][:4] = b":1\r\n"
            return 4

        def is_idle(self) -> bool:
            return True

        def close(self) -> None: ...

    recorder = Recorder()
    replies: list[int] = []
    Connection(recorder).run(  # type: ignore[arg-type]
        [[b"X"]] * 100, lambda idx, _reply: replies.append(idx), 8
    )
    assert replies == list(range(100))
    assert recorder.most <= 8
