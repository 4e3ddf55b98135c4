"""Sockets that take less than they are given."""

from __future__ import annotations

import socket
import threading

import pytest

from kvstore.backends.transport import SocketTransport


@pytest.mark.parametrize("num_parts", [1, 3, 1500])
def test_long_sends_arrive_whole(num_parts: int) -> None:
    """More than the kernel's buffers and more than one call's vectors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    parts = [bytes([idx % 251]) * (3_000_000 // num_parts) for idx in range(num_parts)]
    received = bytearray()

    def drain() -> None:
        while chunk := theirs.recv(1 << 16):
            received.extend(chunk)

    thread = threading.Thread(target=drain)
    thread.start()
    transport = SocketTransport(ours, 5)
    transport.send([*parts])
    transport.close()
    thread.join(5)
    theirs.close()
    assert bytes(received) == b"".join(parts)
