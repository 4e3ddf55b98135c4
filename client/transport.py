"""How a client reaches the front door: plaintext or TLS, with an API key or without."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio

from client.checks import check_text
from client.errors import InvalidArgument

CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a caller needs to be let in; without anything: plaintext, and no key.

    Attributes:
        api_key: Key of the caller. Without TLS it travels readable.
        ca_file: Authorities that the balancer is verified with, PEM; makes the client speak TLS.
        cert_file, key_file: Certificate of the caller, PEM; for mutual TLS.
        server_name: Name in the balancer's certificate, if its address is not in there.
    """

    api_key: str = field(default="", repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        check_text("api_key", self.api_key)
        if not self.api_key.isascii() or any(character.isspace() for character in self.api_key):
            raise InvalidArgument("api_key", "a key has visible ASCII characters only")
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidArgument("cert_file", "certificate and key belong together; give both")
        if self.ca_file is None and (self.cert_file is not None or self.server_name):
            raise InvalidArgument("ca_file", "TLS needs the authorities of the balancer; give them")

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """What goes with every call."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()


class _Way(NamedTuple):
    credentials: grpc.ChannelCredentials | None
    options: list[tuple[str, int | str]]


def open_channel(address: str, access: Access) -> grpc.Channel:
    """A blocking channel; the caller closes it.

    Raises:
        InvalidArgument: A file cannot be read.
    """
    way = _way(access)
    if way.credentials is None:
        return grpc.insecure_channel(address, options=way.options)
    return grpc.secure_channel(address, way.credentials, options=way.options)


def open_aio_channel(address: str, access: Access) -> grpc.aio.Channel:
    """The same for asyncio."""
    way = _way(access)
    if way.credentials is None:
        return grpc.aio.insecure_channel(address, options=way.options)
    return grpc.aio.secure_channel(address, way.credentials, options=way.options)


def _way(access: Access) -> _Way:
    if access.ca_file is None:
        return _Way(None, CHANNEL_OPTIONS)
    options = list(CHANNEL_OPTIONS)
    if access.server_name:
        options.append(("grpc.ssl_target_name_override", access.server_name))
    files = (access.ca_file, access.key_file, access.cert_file)
    return _Way(grpc.ssl_channel_credentials(*map(_bytes, files)), options)


def _bytes(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument("access", f"{path} cannot be read: {error.strerror}") from error
