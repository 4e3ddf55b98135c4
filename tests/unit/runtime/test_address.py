"""Host and port as one text."""

import socket

import pytest

from runtime.address import address_of, family_of


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:50051"),
        ("node-1.example", "node-1.example:50051"),
        ("::1", "[::1]:50051"),
        ("[::1]", "[::1]:50051"),
        ("fd00::2", "[fd00::2]:50051"),
    ],
)
def test_an_ipv6_number_stands_in_brackets(host: str, address: str) -> None:
    assert address_of(host, 50051) == address


def test_the_family_follows_from_the_host() -> None:
    assert family_of("::") is socket.AF_INET6
    assert family_of("0.0.0.0") is socket.AF_INET
    assert family_of("localhost") is socket.AF_INET
