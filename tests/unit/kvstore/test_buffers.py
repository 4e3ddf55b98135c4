"""Views are flat and copy nothing; receive buffers are as long as asked and their caller's own."""

import pytest

from kvstore.buffers import flat_view, new_buffer


@pytest.mark.parametrize("num_bytes", [0, 1, 64, 1 << 20])
def test_a_buffer_is_as_long_as_asked_and_writable(num_bytes: int) -> None:
    buffer = new_buffer(num_bytes)
    assert type(buffer) is bytearray
    buffer[:] = b"x" * num_bytes
    assert buffer == b"x" * num_bytes


def test_two_buffers_do_not_alias() -> None:
    one, other = new_buffer(100), new_buffer(100)
    one[:], other[:] = b"1" * 100, b"2" * 100
    assert (one, other) == (b"1" * 100, b"2" * 100)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        new_buffer(-1)


@pytest.mark.parametrize(
    "buffer",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"abcd").cast("I"),
        memoryview(b"abcd").cast("B", (2, 2)),
    ],
)
def test_flat_views(buffer: bytes) -> None:
    assert bytes(flat_view(buffer)) == b"abcd"


def test_empty_buffers_have_flat_views() -> None:
    assert len(flat_view(b"")) == 0
    assert len(flat_view(memoryview(bytearray()))) == 0
