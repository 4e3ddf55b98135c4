"""Channels from one process of ours to another.

No channel carries a retry policy: the caller that owns the request decides about repetitions. Every
call passes its own `timeout`, computed with `hop_timeout_s`; nothing propagates by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio

from runtime.tls import Identity

MAX_MESSAGE_BYTES: Final = 16 * 2**20
HOP_MARGIN_S: Final = 0.020

Option = tuple[str, int | str]

# An unknown key is ignored in silence by gRPC, so a test holds these against the list in force.
MESSAGE_OPTIONS: Final[tuple[Option, ...]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
BULK_OPTIONS: Final[tuple[Option, ...]] = (
    ("grpc.http2.lookahead_bytes", 16 * 2**20),
    ("grpc.http2.max_frame_size", 2**20),
    ("grpc.http2.bdp_probe", 0),
)
CLIENT_OPTIONS: Final[tuple[Option, ...]] = (
    *MESSAGE_OPTIONS,
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A member that comes back is found again in seconds; the default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Members are reached directly, whatever proxy the environment names.
    ("grpc.enable_http_proxy", 0),
)
# Bulk bytes never share a connection with tokens or control.
BULK_CLIENT_OPTIONS: Final[tuple[Option, ...]] = (
    *CLIENT_OPTIONS,
    *BULK_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(
    address: str,
    *,
    bulk: bool = False,
    identity: Identity | None = None,
    server_name: str = "",
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
) -> grpc.aio.Channel:
    """A channel to `address` (host:port or a gRPC target); connects on first use.

    The caller closes it. Create it in the process and event loop that use it: channels do not
    survive a fork.

    Args:
        identity: Of this process; None: plaintext. Its files are those in force now.
        server_name: Name that the peer's certificate must have, if that is not in the address;
            what the settings of the identity say goes before it.
    """
    options = BULK_CLIENT_OPTIONS if bulk else CLIENT_OPTIONS
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=list(interceptors))
    if name := identity.server_name or server_name:
        options = (*options, ("grpc.ssl_target_name_override", name))
    return grpc.aio.secure_channel(
        address, identity.client(), options=options, interceptors=list(interceptors)
    )


def hop_timeout_s(
    time_remaining_s: float | None, cap_s: float, *, margin_s: float = HOP_MARGIN_S
) -> float:
    """Timeout of a call made on behalf of another: what remains minus a margin, at most the cap.

    Args:
        time_remaining_s: `context.time_remaining()` of the incoming call; None without deadline.
        cap_s: The hop's own limit in seconds.
        margin_s: Left to this hop for its answer.

    Returns:
        Seconds, never negative; 0 means that it is too late already.
    """
    if time_remaining_s is None:
        return cap_s
    return max(0.0, min(cap_s, time_remaining_s - margin_s))
