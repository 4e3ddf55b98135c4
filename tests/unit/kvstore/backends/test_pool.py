"""Connections that are kept, die, are refused or are left in the middle."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from kvstore.backends.pool import RespPool
from kvstore.backends.resp import Reply, ReplyError
from kvstore.config import parse_url
from kvstore.errors import StoreDown
from tests.fakes.stores import small_config


class Peer:
    """A server on a unix socket that plays one script per connection."""

    def __init__(self, path: str, scripts: list[bytes | None]) -> None:
        self.path, self.scripts = path, scripts
        self.received: list[bytes] = []
        self.stop = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.settimeout(5)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        for script in self.scripts:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self.received.append(connection.recv(1 << 16))
                if script is None:
                    self.stop.wait(5)  # silent until the test is over
                else:
                    connection.sendall(script)

    def close(self) -> None:
        self.stop.set()
        self.listener.close()
        self.thread.join(5)


@pytest.fixture
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Peer]]:
    running: list[Peer] = []
    yield running
    for peer in running:
        peer.close()


@pytest.fixture
def path(tmp_path: object) -> str:
    return f"{tmp_path}/s"


def run(pool: RespPool, *commands: list[bytes]) -> list[Reply | ReplyError]:
    replies: list[Reply | ReplyError] = []
    pool.run(commands, lambda _idx, reply: replies.append(reply))
    return replies


def test_nobody_listens(path: str) -> None:
    pool = RespPool(parse_url(f"unix://{path}"), small_config(timeout_s=1, max_connections=1))
    with pytest.raises(StoreDown) as caught:
        run(pool, [b"PING"])
    assert caught.value.address == path
    assert path in str(caught.value)
    tcp = RespPool(parse_url("redis://127.0.0.1:1"), small_config(timeout_s=1, max_connections=1))
    with pytest.raises(StoreDown, match=r"127\.0\.0\.1:1"):
        run(tcp, [b"PING"])


def test_errors_keep_the_connection_in_step(path: str, peers: list[Peer]) -> None:
    peers.append(Peer(path, [b"-OOM no\r\n:1\r\n"]))
    pool = RespPool(parse_url(f"unix://{path}"), small_config(timeout_s=5, max_connections=1))
    first, second = run(pool, [b"A"], [b"B"])
    assert isinstance(first, ReplyError)
    assert second == 1
    pool.close()


def test_a_silent_server_is_down_in_time(path: str, peers: list[Peer]) -> None:
    peers.append(Peer(path, [None]))
    pool = RespPool(parse_url(f"unix://{path}"), small_config(timeout_s=0.05, max_connections=1))
    with pytest.raises(StoreDown, match="no answer in time"):
        run(pool, [b"PING"])


@pytest.mark.parametrize("script", [b"", b":1", b"$5\r\nhel", b"?\r\n"])
def test_a_broken_answer_is_a_store_that_is_down(
    path: str, peers: list[Peer], script: bytes
) -> None:
    peers.append(Peer(path, [script]))
    pool = RespPool(parse_url(f"unix://{path}"), small_config(timeout_s=5, max_connections=1))
    with pytest.raises(StoreDown):
        run(pool, [b"GET", b"k"])


def test_a_kept_connection_that_died_is_replaced_once(path: str, peers: list[Peer]) -> None:
    peers.append(Peer(path, [b":1\r\n", b":2\r\n"]))
    pool = RespPool(parse_url(f"unix://{path}"), small_config(timeout_s=5, max_connections=1))
    assert run(pool, [b"A"]) == [1]
    # The peer hung up after its script; the pool does not know yet.
    assert run(pool, [b"B"]) == [2]
    assert [data.split(b"\r\n")[2] for data in peers[0].received] == [b"A", b"B"]
    pool.close()


def test_a_callback_that_raises_closes_the_connection(path: str, peers: list[Peer]) -> None:
    peers.append(Peer(path, [b":1\r\n:2\r\n", b":3\r\n"]))
    pool = RespPool(parse_url(f"unix://{path}"), small_config(timeout_s=5, max_connections=1))

    def fail(_idx: int, _reply: object) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        pool.run([[b"A"], [b"B"]], fail)
    assert run(pool, [b"C"]) == [3]  # a fresh connection, not the one with a reply left in it
    pool.close()


def test_passwords_and_databases_are_sent_first(path: str, peers: list[Peer]) -> None:
    peers.append(Peer(path, [b"-WRONGPASS no\r\n:0\r\n"]))
    pool = RespPool(
        parse_url(f"unix://u:p@x{path}?db=2"), small_config(timeout_s=5, max_connections=1)
    )
    with pytest.raises(StoreDown, match="greeting refused: WRONGPASS") as caught:
        run(pool, [b"PING"])
    assert b"AUTH\r\n$1\r\nu\r\n$1\r\np\r\n" in peers[0].received[0]
    assert b"SELECT\r\n$1\r\n2\r\n" in peers[0].received[0]
    assert ":p@" not in str(caught.value)


def test_a_closed_pool_keeps_no_connection(path: str, peers: list[Peer]) -> None:
    peers.append(Peer(path, [b":1\r\n", b":2\r\n"]))
    pool = RespPool(parse_url(f"unix://{path}"), small_config(timeout_s=5, max_connections=1))
    run(pool, [b"A"])
    pool.close()
    pool.close()
    run(pool, [b"B"])
    assert not pool._idle
