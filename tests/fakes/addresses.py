"""What addresses this machine has."""

import socket

import pytest


def require_ipv6() -> None:
    """Skips where the machine has no IPv6 loopback: some containers switch it off."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"NO IPV6 HERE, ITS ADDRESSES ARE NOT TESTED: {error}")
