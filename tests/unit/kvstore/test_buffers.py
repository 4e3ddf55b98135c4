"""Receive buffers have the asked length and belong to their caller."""

import pytest

from kvstore.buffers import new_buffer


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
