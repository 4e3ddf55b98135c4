"""Its measurement moves every byte; the store itself lives in another environment."""

import socket

from benchmarks.kv_peers.mooncake_store import free_port, measure


class Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def put(self, name: str, value: bytes) -> None:
        assert name not in self.values
        self.values[name] = value

    def get(self, name: str) -> bytes:
        return self.values[name]


def test_every_round_writes_names_of_its_own() -> None:
    store = Store()
    put, get = measure(store, 1000, 10_000, 3)
    assert put > 0
    assert get > 0
    assert len(store.values) == 10 * 4  # one round to warm up


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
