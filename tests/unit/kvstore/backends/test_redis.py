"""What only a server can show: lives on its clock, its errors, its restarts, many threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import embedded
from kvstore.backends.redis import _SCRIPTS, RedisBackend, load_script
from kvstore.config import parse_url
from kvstore.errors import StoreDown, StoreFull, StoreRefused
from kvstore.keys import body_key, data_key, lease_key
from kvstore.store import KvStore
from tests.fakes.stores import FINGERPRINT, Prompt, RawRedis, make_store, raw_redis, small_config

pytestmark = pytest.mark.medium
PROMPT = Prompt("r", tuple(range(14)))


@pytest.fixture(scope="module")
def server() -> Iterator[RawRedis]:
    with raw_redis() as raw:
        yield raw


@pytest.fixture
def raw(server: RawRedis) -> RawRedis:
    server.clear()
    return server


@pytest.fixture
def store(raw: RawRedis) -> KvStore:
    return make_store(raw.backend)


def test_every_script_file_is_used() -> None:
    present = {path.stem for path in Path("kvstore/scripts").glob("*.lua")}
    assert present == set(_SCRIPTS)
    for name in _SCRIPTS:
        assert load_script(name).startswith("-- "), f"{name} does not say what it does"


def test_every_key_has_a_life(store: KvStore, raw: RawRedis) -> None:
    Prompt("r", tuple(range(14)), block_bytes=300).hand_over(store)
    store.put_state(PROMPT.hashes[0], bytes(500), attempt=1)
    lives = {key: raw.client.pttl(key) for key in raw.client.scan_iter()}
    assert len(lives) > 10
    assert {key: life for key, life in lives.items() if life <= 0} == {}
    assert max(lives.values()) <= 1_200_000


def test_classes_of_life(store: KvStore, raw: RawRedis) -> None:
    def life_s(key: bytes) -> float:
        return round(raw.client.pttl(key) / 1000)

    block = data_key(FINGERPRINT, PROMPT.hashes[0], 1, 0)  # type: ignore[arg-type]
    ticket = PROMPT.hand_over(store)
    assert life_s(block) == life_s(body_key(ticket.handoff_id)) == 600
    assert {life_s(key) for key in raw.values() if b":t:" in key} == {600}
    with store.open_ticket(ticket, PROMPT.token_ids) as reader:
        reader.fetch()
        assert life_s(lease_key(ticket.handoff_id)) == 600
    assert life_s(block) == 3600
    raw.client.pexpire(block, 7_200_000)
    store.get_blocks(PROMPT.hashes)
    assert life_s(block) == 7200, "a longer life is kept"


def test_uncommitted_tails_are_short_lived(store: KvStore, raw: RawRedis) -> None:
    digests = store.put_blocks(list(zip(PROMPT.hashes, PROMPT.payloads, strict=True)), attempt=1)
    # A commit that dies between the tail and the body: here because the body's name is taken.
    ticket = store.commit(PROMPT.draft(digests))
    store.abort(ticket.handoff_id)
    raw.client.set(body_key(ticket.handoff_id), b"something else", px=60_000)
    with pytest.raises(Exception, match="another body"):
        store.commit(PROMPT.draft(digests))
    lives = [raw.client.pttl(key) for key in raw.values() if b":t:" in key]
    assert lives
    assert max(lives) <= 30_000


def test_scripts_survive_a_server_that_forgot_them(store: KvStore, raw: RawRedis) -> None:
    PROMPT.hand_over(store)
    raw.client.script_flush()
    assert store.abort(PROMPT.hand_over(store).handoff_id)


def test_a_full_server_refuses_by_name_and_nothing_is_half_visible(
    store: KvStore, raw: RawRedis
) -> None:
    digests = store.put_blocks(list(zip(PROMPT.hashes, PROMPT.payloads, strict=True)), attempt=1)
    raw.client.config_set("maxmemory-policy", "noeviction")
    raw.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull, match="maxmemory"):
            store.put_block(bytes(32), b"x", attempt=1)
        with pytest.raises(StoreFull):
            store.put_state(bytes(32), bytes(500), attempt=1)
        with pytest.raises(StoreFull):
            store.commit(PROMPT.draft(digests))
        assert store.audit() == []
        assert store.statistics().failures == {"store_full": 3}
    finally:
        raw.client.config_set("maxmemory", 256 << 20)
        raw.client.config_set("maxmemory-policy", "volatile-lru")
    store.abort(store.commit(PROMPT.draft(digests)).handoff_id)


def test_a_key_of_the_wrong_type_is_a_refusal(store: KvStore, raw: RawRedis) -> None:
    key = data_key(FINGERPRINT, PROMPT.hashes[0], 1, 0)  # type: ignore[arg-type]
    raw.client.rpush(key, b"x")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        store.get_blocks(PROMPT.hashes[:1])
    raw.client.delete(key)
    store.put_block(PROMPT.hashes[0], b"x", attempt=1)
    assert store.get_blocks(PROMPT.hashes[:1]) == [b"x"]


def test_an_unreachable_server_is_named(tmp_path: Path) -> None:
    backend = RedisBackend(parse_url(f"unix://{tmp_path}/none"), small_config(timeout_s=1.0))
    store = make_store(backend)
    for call in (
        store.ping,
        store.audit,
        lambda: store.lookup(PROMPT.hashes),
        lambda: PROMPT.hand_over(store),
        lambda: store.begin_attempt("r", 1),
    ):
        with pytest.raises(StoreDown) as caught:
            call()
        assert f"{tmp_path}/none" in str(caught.value)
    assert store.statistics().failures == {"store_down": 5}


def test_a_server_that_restarts_empty_is_survived(tmp_path: Path) -> None:
    first = embedded.start(tmp_path, max_memory_bytes=64 << 20)
    backend = RedisBackend(parse_url(first.url), small_config())
    store = make_store(backend)
    try:
        ticket = PROMPT.hand_over(store)
        first.stop()
        with pytest.raises(StoreDown):
            store.lookup(PROMPT.hashes)
        with embedded.start(tmp_path, max_memory_bytes=64 << 20):
            with pytest.raises(Exception, match="knows no attempt"):
                store.open_ticket(ticket, PROMPT.token_ids)
            assert store.lookup(PROMPT.hashes).num_blocks == 0
            with store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids) as reader:
                assert reader.fetch().num_tokens == 14
            assert store.audit() == []
    finally:
        first.stop()
        store.close()


def test_a_release_without_a_server_is_counted_and_does_not_raise(tmp_path: Path) -> None:
    with embedded.start(tmp_path, max_memory_bytes=64 << 20) as server:
        store = make_store(RedisBackend(parse_url(server.url), small_config(timeout_s=1.0)))
        reader = store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids)
    assert not reader.release()
    assert store.statistics().failures == {"store_down": 1}
    store.close()


def test_databases_are_separate(raw: RawRedis, store: KvStore) -> None:
    path = parse_url(f"unix://{raw.client.get_connection_kwargs()['path']}?db=1")
    backend = RedisBackend(path, small_config())
    other = make_store(backend)
    store.put_block(PROMPT.hashes[0], b"x", attempt=1)
    assert other.lookup(PROMPT.hashes[:1]).num_blocks == 0
    other.begin_attempt("r", 5)
    store.begin_attempt("r", 1)
    other.close()


def test_threads_share_a_client(store: KvStore) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(10):
                prompt = Prompt(f"{number}-{round_}", (*range(40), number, round_))
                with store.open_ticket(prompt.hand_over(store), prompt.token_ids) as reader:
                    assert [*map(bytes, reader.fetch().blocks)] == prompt.payloads
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert store.audit() == []
    assert store.statistics().released == 60


def test_tcp_with_a_password(raw: RawRedis) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    raw.client.config_set("port", port)
    raw.client.config_set("requirepass", "secret")
    try:
        backend = RedisBackend(parse_url(f"redis://:secret@127.0.0.1:{port}/1"), small_config())
        store = make_store(backend)
        with store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids) as reader:
            assert [*map(bytes, reader.fetch().blocks)] == PROMPT.payloads
        store.close()
        stranger = make_store(
            RedisBackend(parse_url(f"redis://:wrong@127.0.0.1:{port}"), small_config())
        )
        for call in (stranger.ping, lambda: stranger.lookup(PROMPT.hashes)):
            with pytest.raises(StoreDown) as caught:
                call()
            assert f"127.0.0.1:{port}" in str(caught.value)
            assert "wrong@" not in str(caught.value)
        stranger.close()
    finally:
        raw.client.config_set("requirepass", "")
        raw.client.config_set("port", 0)
