"""Notes of who wrote a block: few, the first one stays, and none is believed that is damaged."""

from __future__ import annotations

import time

from kvstore.backends.memory import MemoryBackend
from kvstore.config import KvStoreConfig
from kvstore.keys import Component, data_key
from kvstore.payloads.writers import MAX_LOOKED, STRIDE, noted
from kvstore.store import KvStore

FINGERPRINT = bytes(range(8))
NAMES = [number.to_bytes(32) for number in range(40)]


def a_store() -> tuple[KvStore, MemoryBackend]:
    backend = MemoryBackend(time.monotonic)
    config = KvStoreConfig(block_tokens=4, owner="test")
    store = KvStore(backend, config, fingerprint=FINGERPRINT, clock=time.monotonic)
    return store, backend


def test_every_eighth_block_and_the_last_get_a_note() -> None:
    assert STRIDE == 8
    assert noted(0, 20) == [7, 15, 19]
    assert noted(10, 20) == [15, 19]
    assert noted(0, 16) == [7, 15]
    assert noted(5, 5) == []
    assert noted(0, 1) == [0]


def test_writers_of_a_chain_newest_first_and_each_once() -> None:
    store, _ = a_store()
    store.note_writer(NAMES[:20], 0, "first")
    store.note_writer(NAMES[:30], 20, "second")
    assert store.writers(NAMES, 8) == ["second", "first"]
    assert store.writers(NAMES, 1) == ["second"]
    assert store.writers(NAMES[:16], 8) == ["first"]
    assert store.writers(NAMES[:7], 8) == []


def test_the_first_note_of_a_block_stays() -> None:
    store, _ = a_store()
    store.note_writer(NAMES[:8], 0, "first")
    store.note_writer(NAMES[:8], 0, "second")
    assert store.writers(NAMES[:8], 8) == ["first"]
    assert store.statistics().quarantined == 0


def test_a_damaged_note_is_left_out() -> None:
    store, backend = a_store()
    store.note_writer(NAMES[:8], 0, "first")
    key = data_key(FINGERPRINT, NAMES[7], Component.WRITER, 0)
    values: list[bytes] = []
    backend.get([key], lambda _idx, value: values.append(bytes(value or b"")))
    backend.quarantine(key, values[0][:64])
    from kvstore.backends.base import PutItem

    backend.put([PutItem(key, values[0][:64], b"other", 60_000)])
    assert store.writers(NAMES[:8], 8) == []


def test_only_the_newest_blocks_are_looked_at() -> None:
    store, backend = a_store()
    asked: list[int] = []
    get = backend.get

    def counted(keys, *rest):  # type: ignore[no-untyped-def]
        asked.append(len(keys))
        return get(keys, *rest)

    backend.get = counted  # type: ignore[method-assign]
    names = [number.to_bytes(32) for number in range(5_000)]
    assert store.writers(names, 8) == []
    assert asked == [MAX_LOOKED]
