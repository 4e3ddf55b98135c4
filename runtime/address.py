"""Addresses as text, host:port, also where the host is an IPv6 number."""

from __future__ import annotations

import socket


def address_of(host: str, port: int) -> str:
    """Returns host:port as clients dial it: an IPv6 number stands in brackets.

    Args:
        host: A name or a number, IPv6 without or within brackets.
        port: 0 to 65535.
    """
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of sockets that listen at `host`: a number of IPv6 has colons."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
