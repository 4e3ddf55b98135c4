"""Connected byte streams to a server: plain sockets with scatter and gather, and TLS.

Invariant: every call ends, within the timeout the stream was opened with.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from pathlib import Path
from typing import Protocol

from kvstore.buffers import Buffer
from kvstore.config import KvStoreConfig, StoreUrl

_MAX_IOVECS = 512  # Linux takes 1024
_SEND_BUFFER_BYTES = 2 << 20


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
    """Plain socket, unix or TCP. Timeouts are the kernel's, so a call is one system call.

    A unix socket gets a large send buffer: while the server drains it, the next block is prepared.
    Receiving has nothing to set there, and TCP sizes its buffers by itself.
    """

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        sock.settimeout(None)
        timeval = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        if sock.family == socket.AF_UNIX:
            # The host may allow less (net.core.wmem_max), which is no error.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
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


def open_transport(url: StoreUrl, config: KvStoreConfig) -> Transport:
    """A connected transport for a URL. Raises OSError."""
    timeout_s = config.timeout_s
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
            context = tls_context(config)
            return TlsTransport(context.wrap_socket(sock, server_hostname=url.host), timeout_s)
        return SocketTransport(sock, timeout_s)
    except BaseException:
        sock.close()
        raise


def tls_context(config: KvStoreConfig) -> ssl.SSLContext:
    """Verifies the server against the configured authority; shows our certificate if there is one.

    Raises:
        OSError: A file cannot be read, or is no certificate or key.
    """
    context = ssl.create_default_context(cafile=config.tls_ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.tls_cert_file:
        context.load_cert_chain(config.tls_cert_file, config.tls_key_file or None)
    return context


def password_of(url: StoreUrl, config: KvStoreConfig) -> str:
    """The password of the URL, or of the configured file, which is read anew: it may be rotated.

    Raises:
        OSError: The file cannot be read.
    """
    if config.password_file:
        return Path(config.password_file).read_text("utf-8").strip()
    return url.password


def _is_silent(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)
