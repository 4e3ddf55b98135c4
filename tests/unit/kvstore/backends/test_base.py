"""The ports stay small, and each backend is both of them."""

import inspect

import pytest

from kvstore.backends.base import BlockStore, LeaseStore
from kvstore.backends.memory import MemoryBackend
from kvstore.backends.redis import RedisBackend


def methods(port: type) -> list[str]:
    return [
        name
        for name, value in inspect.getmembers(port, inspect.isfunction)
        if not name.startswith("_")
    ]


@pytest.mark.parametrize("port", [BlockStore, LeaseStore])
def test_a_port_has_at_most_seven_methods(port: type) -> None:
    assert 1 <= len(methods(port)) <= 7


@pytest.mark.parametrize("backend", [MemoryBackend, RedisBackend])
@pytest.mark.parametrize("port", [BlockStore, LeaseStore])
def test_every_backend_has_the_same_signatures(backend: type, port: type) -> None:
    for name in methods(port):
        wanted = inspect.signature(getattr(port, name))
        assert inspect.signature(getattr(backend, name)) == wanted, name
