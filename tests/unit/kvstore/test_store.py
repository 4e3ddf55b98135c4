"""Opening by URL, refusing bad arguments, and refreshing what is hot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import kvstore
from kvstore import open_store
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import StoreDown, StoreUrlError
from kvstore.store import open_backend
from tests.fakes.stores import ManualClock, Prompt, make_store, small_config

PROMPT = Prompt("r", tuple(range(14)))


def test_public_names_are_sorted_and_exist() -> None:
    assert kvstore.__all__ == sorted(kvstore.__all__)
    assert all(hasattr(kvstore, name) for name in kvstore.__all__)


def test_a_memory_store_is_private() -> None:
    stores = [
        open_store("memory://", small_config(), fingerprint=bytes(8), clock=ManualClock())
        for _ in range(2)
    ]
    stores[0].put_block(PROMPT.hashes[0], b"x", attempt=1)
    assert [store.lookup(PROMPT.hashes).num_blocks for store in stores] == [1, 0]
    assert stores[0].fingerprint == bytes(8)
    assert stores[0].config == small_config()


def test_opening_does_not_connect(tmp_path: Path) -> None:
    store = open_store(
        f"unix://{tmp_path}/none", small_config(), fingerprint=bytes(8), clock=ManualClock()
    )
    with pytest.raises(StoreDown):
        store.lookup(PROMPT.hashes)
    store.close()
    store.close()


def test_unknown_schemes_list_the_known_ones() -> None:
    with pytest.raises(StoreUrlError, match="memory, unix, file, redis, rediss"):
        open_backend("mooncake://x", small_config(), ManualClock())


def test_a_fingerprint_has_eight_bytes() -> None:
    with pytest.raises(ValueError, match="fingerprint has 7 bytes"):
        open_store("memory://", small_config(), fingerprint=bytes(7), clock=ManualClock())


def test_block_hashes_have_32_bytes() -> None:
    store = make_store(MemoryBackend(ManualClock()))
    short = [bytes(32), bytes(8)]
    for call in (
        lambda: store.lookup(short),
        lambda: store.get_blocks(short),
        lambda: store.put_blocks([(name, b"x") for name in short], attempt=1),
    ):
        with pytest.raises(ValueError, match="block hash 1 has 8 bytes"):
            call()
    with pytest.raises(ValueError, match="block hash 0"):
        store.get_state(b"")


class CountingLookups(MemoryBackend):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.extended: list[int] = []

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        if extend_ms:
            self.extended.append(len(keys))
        return super().lookup(keys, extend_ms=extend_ms)


def test_a_hot_block_is_refreshed_once_a_minute() -> None:
    clock = ManualClock()
    backend = CountingLookups(clock)
    store = make_store(backend, clock)
    store.put_blocks(list(zip(PROMPT.hashes, PROMPT.payloads, strict=True)), attempt=1)
    for _ in range(3):
        store.get_blocks(PROMPT.hashes[:2])
    assert backend.extended == [2]
    store.get_blocks(PROMPT.hashes)
    assert backend.extended == [2, 1]
    clock.advance(60)
    store.get_blocks(PROMPT.hashes)
    assert backend.extended == [2, 1, 3]


def test_a_lookup_asks_for_states_only_below_the_stored_blocks() -> None:
    asked: list[int] = []

    class Recording(MemoryBackend):
        def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
            asked.append(len(keys))
            return super().lookup(keys, extend_ms=extend_ms)

    store = make_store(Recording(ManualClock()))
    long = Prompt("r", tuple(range(400)))
    assert store.lookup(long.hashes).num_blocks == 0
    assert asked == [100]
    store.put_block(long.hashes[0], b"x", attempt=1)
    assert store.lookup(long.hashes).resume_blocks == 0
    assert asked == [100, 100, 1]


def test_a_key_file_that_cannot_be_read_is_an_error_of_the_url() -> None:
    with pytest.raises(StoreUrlError, match="'/none' cannot be read"):
        open_backend("memory://?integrity_key_file=/none", small_config(), ManualClock())
