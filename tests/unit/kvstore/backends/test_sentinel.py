"""A watched primary: found, followed after a fail-over, and missed with a clear error."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
import redis

from kvstore import KvStore
from kvstore.backends.control import open_control, translated
from kvstore.backends.resp import Reply, ReplyError
from kvstore.backends.sentinel import PrimaryFinder, SentinelWire
from kvstore.backends.wire import Job, Keyed
from kvstore.config import KvStoreConfig, parse_url
from kvstore.embedded import start
from kvstore.errors import BlockMissing, StoreDown
from kvstore.store import open_store
from tests.fakes.servers import free_port, watched

FINGERPRINT = bytes(range(8))
Answer = TypeVar("Answer")
NAMES = [bytes([number]) * 32 for number in range(40)]


def open_watched(url: str) -> KvStore:
    config = KvStoreConfig(block_tokens=4, timeout_s=2.0)
    return open_store(url, config, fingerprint=FINGERPRINT, clock=lambda: 0.0)


def once_up(call: Callable[[], Answer]) -> Answer:
    """The answer of the first call that finds a primary."""
    pause = threading.Event()
    for _ in range(500):
        try:
            return call()
        except StoreDown:
            pause.wait(0.01)
    return call()


def test_sentinels_that_do_not_answer_are_named() -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{free_port()}/kv"
    find = PrimaryFinder(parse_url(url), KvStoreConfig(block_tokens=4, timeout_s=0.5))
    with pytest.raises(StoreDown, match=r"kv by 127\.0\.0\.1") as caught:
        find()
    assert caught.value.detail == "no sentinel answers (connection refused)"
    control = open_control(parse_url(url), KvStoreConfig(block_tokens=4, timeout_s=0.5), find)
    with pytest.raises(StoreDown) as caught, translated(parse_url(url).address):
        control.ping()
    assert caught.value.detail == "no sentinel answers (connection refused)"
    find.close()


@pytest.mark.medium
def test_a_name_that_nobody_watches_is_a_store_that_is_down() -> None:
    with watched() as servers:
        store = open_watched(servers.url.replace("/kv", "/other"))
        with pytest.raises(StoreDown, match=r"other by .* no sentinel knows a primary 'other'"):
            store.put_block(NAMES[0], b"bytes", attempt=1)
        store.close()


@pytest.mark.medium
def test_after_a_fail_over_the_store_serves_what_was_replicated_and_takes_new_blocks() -> None:
    with watched() as servers:
        assert (
            PrimaryFinder(parse_url(servers.url), KvStoreConfig(block_tokens=4))().port
            == (servers.ports[0])
        )
        store = open_watched(servers.url)
        payload = bytes(range(256)) * 16
        for name in NAMES[:-1]:
            store.put_block(name, payload, attempt=1)
        servers.nodes[0].wait(1, 5000)
        servers.kill_primary()

        # For a moment the sentinel names nobody: a store that is down, never a wrong answer.
        payloads = once_up(lambda: store.get_blocks(NAMES[:-1]))
        assert [bytes(found) for found in payloads] == [payload] * (len(NAMES) - 1)
        with pytest.raises(BlockMissing):
            store.get_blocks(NAMES[-1:])
        store.put_block(NAMES[-1], payload, attempt=1)
        store.begin_attempt("request", 1)
        assert store.lookup(NAMES).num_blocks == len(NAMES)
        store.close()


@pytest.mark.medium
def test_a_primary_that_was_demoted_is_left_at_the_next_call(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        servers = [cleanup.enter_context(start(tmp_path / name)) for name in "ab"]
        clients = [
            cleanup.enter_context(redis.Redis(unix_socket_path=server.url.removeprefix("unix://")))
            for server in servers
        ]
        primary = [0]
        wire = SentinelWire(
            parse_url("redis+sentinel://nowhere/kv"),
            KvStoreConfig(block_tokens=4),
            lambda: parse_url(servers[primary[0]].url),
        )
        cleanup.callback(wire.close)
        assert set_on(wire, b"first") == [b"OK"]
        clients[0].replicaof("127.0.0.1", "1")
        primary[0] = 1
        refused = set_on(wire, b"second")
        assert [type(reply) for reply in refused] == [ReplyError]
        assert str(refused[0]).startswith("READONLY")
        assert set_on(wire, b"second") == [b"OK"]
        assert [client.dbsize() for client in clients] == [1, 1]


def set_on(wire: SentinelWire, key: bytes) -> list[Reply | ReplyError]:
    replies: list[Reply | ReplyError] = []
    job = Job(on_reply=lambda _idx, reply: replies.append(reply), depth=1)
    wire.run([Keyed(key, (b"SET", key, b"value"))], job)
    return replies
