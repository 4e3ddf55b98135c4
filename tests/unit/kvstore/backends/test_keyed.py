"""Keyed tags: without the key nothing can be changed or moved, and all damage is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore import KvStore, open_store
from kvstore.backends.keyed import KeyedBackend, read_key
from kvstore.backends.memory import MemoryBackend
from kvstore.digests import payload_digest
from kvstore.errors import BlockCorrupt, LayoutDiffers
from kvstore.keys import data_key
from kvstore.mutation.draws import Draws
from kvstore.mutation.world import mutate
from tests.fakes.stores import (
    FINGERPRINT,
    ManualClock,
    Prompt,
    RawMemory,
    make_store,
    small_config,
)

PROMPT = Prompt("r", tuple(range(14)))
KEY = data_key(FINGERPRINT, PROMPT.hashes[0], 1, 0)  # type: ignore[arg-type]


@pytest.fixture
def raw() -> RawMemory:
    return RawMemory(MemoryBackend(ManualClock()))


@pytest.fixture
def store(raw: RawMemory) -> KvStore:
    return make_store(KeyedBackend(raw.backend, bytes(32)))


def test_a_forger_without_the_key_is_found_out(store: KvStore, raw: RawMemory) -> None:
    """Payload and digest replaced together: right in the eyes of xxh3."""
    store.put_block(PROMPT.hashes[0], b"payload", attempt=1)
    value = bytearray(raw.values()[KEY])
    value[64:71] = b"forgery"
    value[40:56] = payload_digest(b"forgery")
    raw.write(KEY, bytes(value))
    with pytest.raises(BlockCorrupt) as caught:
        store.get_blocks(PROMPT.hashes[:1])
    assert caught.value.reason == "tag"
    assert KEY not in raw.values()
    plain = make_store(raw.backend)
    plain.put_block(PROMPT.hashes[0], b"payload", attempt=1)
    assert bytes(plain.get_blocks(PROMPT.hashes[:1])[0]) == b"payload"
    with pytest.raises(BlockCorrupt, match="tag"):
        store.get_blocks(PROMPT.hashes[:1])


def test_a_value_belongs_to_its_full_key(store: KvStore, raw: RawMemory) -> None:
    """The header names only eight bytes of a hash; the tag covers all of it."""
    near = PROMPT.hashes[0][:-1] + bytes([PROMPT.hashes[0][-1] ^ 1])
    store.put_block(PROMPT.hashes[0], b"one", attempt=1)
    store.put_block(near, b"two", attempt=1)
    other = data_key(FINGERPRINT, near, 1, 0)  # type: ignore[arg-type]
    raw.write(other, raw.values()[KEY])
    with pytest.raises(BlockCorrupt, match="tag"):
        store.get_blocks([near])


def test_another_key_reads_nothing(store: KvStore, raw: RawMemory) -> None:
    ticket = PROMPT.hand_over(store)
    other = make_store(KeyedBackend(raw.backend, bytes(31) + b"x"))
    with pytest.raises(BlockCorrupt, match="tag"):
        other.open_ticket(ticket, PROMPT.token_ids)


def test_a_store_with_another_key_is_another_layout(tmp_path: Path) -> None:
    def opened(secret: str | None) -> KvStore:
        config = small_config()
        if secret is not None:
            (tmp_path / secret[:1]).write_text(secret)
            config = small_config(
                integrity="blake3-keyed", integrity_key_file=str(tmp_path / secret[:1])
            )
        url = f"file://{tmp_path}/store"
        return open_store(url, config, fingerprint=FINGERPRINT, clock=ManualClock())

    plain, one, two = opened(None), opened("1" * 64), opened("2" * 64)
    assert plain.fingerprint == FINGERPRINT
    assert opened("1" * 64).fingerprint == one.fingerprint
    assert len({store.fingerprint for store in (plain, one, two)}) == 3
    ticket = PROMPT.hand_over(one)
    assert ticket.fingerprint == one.fingerprint
    for other in (plain, two):
        assert other.lookup(PROMPT.hashes).num_blocks == 0
        with pytest.raises(LayoutDiffers):
            other.open_ticket(ticket, PROMPT.token_ids)
        other.put_block(PROMPT.hashes[0], b"of its own", attempt=1)
    with opened("1" * 64).open_ticket(ticket, PROMPT.token_ids) as reader:
        assert reader.fetch().num_tokens == 14


def test_no_mutation_goes_unnoticed() -> None:
    backend = KeyedBackend(MemoryBackend(ManualClock()), bytes(32))
    report = mutate(backend, Draws(1), count=200, clock=ManualClock())
    assert (report.mutations, report.undetected) == (200, [])


def test_the_key_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("0123456789abcdef" * 4 + "\n")
    assert len(read_key(str(secret))) == 32
    config = small_config(integrity="blake3-keyed", integrity_key_file=str(secret))
    store = open_store("memory://", config, fingerprint=FINGERPRINT, clock=ManualClock())
    ticket = PROMPT.hand_over(store)
    with store.open_ticket(ticket, PROMPT.token_ids) as reader:
        assert reader.fetch().num_tokens == 14
    secret.write_text("short")
    with pytest.raises(ValueError, match="holds 5 bytes, at least 32"):
        read_key(str(secret))
    with pytest.raises(ValueError, match="cannot be read"):
        read_key(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "settings",
    [{"integrity": "md5"}, {"integrity": "blake3-keyed"}, {"integrity_key_file": "/key"}],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="integrity"):
        small_config(**settings)
