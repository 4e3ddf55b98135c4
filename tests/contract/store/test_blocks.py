"""What a store promises of blocks and prefixes, on every backend."""

from __future__ import annotations

import pytest

from kvstore import KvStore, PrefixMatch
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
)
from kvstore.keys import data_key, index_key
from tests.fakes.stores import (
    BLOCK_TOKENS,
    FINGERPRINT,
    ManualClock,
    Prompt,
    RawStore,
    make_bytes,
)

PROMPT = Prompt("request-1", tuple(range(14)))  # three blocks and a tail of two tokens


@pytest.mark.parametrize("num_bytes", [0, 1, 127, 128, 129, 256, 1000, 5000])
def test_blocks_come_back_as_they_were_put(store: KvStore, num_bytes: int) -> None:
    payload = make_bytes("block", num_bytes)
    digest = store.put_block(PROMPT.hashes[0], payload, attempt=1)
    assert len(digest) == 16
    assert bytes(store.get_blocks(PROMPT.hashes[:1])[0]) == payload


def test_many_blocks_come_back_in_order(store: KvStore) -> None:
    prompt = Prompt("long", tuple(range(400)))
    store.put_blocks(list(zip(prompt.hashes, prompt.payloads, strict=True)), attempt=1)
    order = [*reversed(prompt.hashes), prompt.hashes[0]]
    wanted = [*reversed(prompt.payloads), prompt.payloads[0]]
    assert [bytes(block) for block in store.get_blocks(order)] == wanted


def test_no_blocks_is_a_legal_request(store: KvStore) -> None:
    assert store.get_blocks([]) == []
    assert store.put_blocks([], attempt=1) == []
    assert store.lookup([]) == PrefixMatch(num_blocks=0, resume_blocks=0, replay_tokens=0)


def test_values_go_where_allocate_says(store: KvStore) -> None:
    store.put_block(PROMPT.hashes[0], b"payload", attempt=1)
    arena = bytearray(1000)
    block = store.get_blocks(PROMPT.hashes[:1], allocate=lambda size: memoryview(arena)[:size])[0]
    assert block == b"payload"
    assert bytes(arena[64:71]) == b"payload"


def test_payloads_of_any_item_type_are_bytes(store: KvStore) -> None:
    words = memoryview(bytes(range(16))).cast("I", (2, 2))
    store.put_block(PROMPT.hashes[0], words, attempt=1)  # type: ignore[arg-type]
    assert bytes(store.get_blocks(PROMPT.hashes[:1])[0]) == bytes(range(16))


@pytest.mark.parametrize("num_bytes", [50, 500])
def test_equal_bytes_are_stored_once(store: KvStore, num_bytes: int) -> None:
    payload = make_bytes("block", num_bytes)
    first = store.put_block(PROMPT.hashes[0], payload, attempt=1)
    assert store.put_block(PROMPT.hashes[0], payload, attempt=2) == first
    counts = store.statistics()
    assert counts.blocks_written == counts.blocks_deduplicated > 0


@pytest.mark.parametrize("num_bytes", [50, 500])
def test_other_bytes_under_a_name_are_a_conflict_once(store: KvStore, num_bytes: int) -> None:
    name = PROMPT.hashes[0]
    store.put_block(name, make_bytes("one", num_bytes), attempt=1)
    with pytest.raises(BlockCorrupt) as caught:
        store.put_block(name, make_bytes("two", num_bytes), attempt=1)
    assert (caught.value.kind, caught.value.reason) == ("kv", "conflict")
    assert store.statistics().failures == {"corrupt_conflict": 1}
    store.put_block(name, make_bytes("two", num_bytes), attempt=1)
    assert bytes(store.get_blocks([name])[0]) == make_bytes("two", num_bytes)


def test_a_missing_block_is_named_by_its_position(store: KvStore) -> None:
    store.put_block(PROMPT.hashes[0], b"x", attempt=1)
    with pytest.raises(BlockMissing) as caught:
        store.get_blocks(PROMPT.hashes)
    assert (caught.value.kind, caught.value.index) == ("kv", 1)
    with pytest.raises(BlockMissing) as caught:
        store.get_state(PROMPT.hashes[0])
    assert caught.value.kind == "state"
    assert store.statistics().failures == {"missing_kv": 1, "missing_state": 1}


@pytest.mark.parametrize("num_bytes", [50, 500])
def test_a_flipped_byte_is_found_and_the_key_quarantined(
    store: KvStore, raw: RawStore, num_bytes: int
) -> None:
    name = PROMPT.hashes[0]
    payload = make_bytes("block", num_bytes)
    store.put_block(name, payload, attempt=1)
    key = data_key(FINGERPRINT, name, 1, 0)  # type: ignore[arg-type]
    value = bytearray(raw.values()[key])
    value[70] ^= 1
    raw.write(key, bytes(value))
    with pytest.raises(BlockCorrupt) as caught:
        store.get_blocks([name])
    assert (caught.value.kind, caught.value.index, caught.value.reason) == ("kv", 0, "digest")
    assert key not in raw.values()
    assert store.statistics().quarantined == 1
    assert store.lookup([name]).num_blocks == 0
    store.put_block(name, payload, attempt=2)
    assert bytes(store.get_blocks([name])[0]) == payload


def test_a_block_of_another_layout_is_a_miss(store: KvStore, raw: RawStore) -> None:
    store.put_block(PROMPT.hashes[0], b"x", attempt=1)
    other = KvStore(raw.backend, store.config, fingerprint=bytes(8), clock=ManualClock())
    assert other.lookup(PROMPT.hashes).num_blocks == 0
    with pytest.raises(BlockMissing):
        other.get_blocks(PROMPT.hashes[:1])


@pytest.mark.parametrize("victim", ["first", "last", "index"])
def test_a_payload_without_one_of_its_parts_is_absent(
    store: KvStore, raw: RawStore, victim: str
) -> None:
    name = PROMPT.hashes[0]
    payload = make_bytes("block", 500)
    store.put_block(name, payload, attempt=1)
    keys = {
        "first": data_key(FINGERPRINT, name, 1, 0),  # type: ignore[arg-type]
        "last": data_key(FINGERPRINT, name, 1, 3),  # type: ignore[arg-type]
        "index": index_key(FINGERPRINT, name),
    }
    raw.delete(keys[victim])
    with pytest.raises(BlockMissing):
        store.get_blocks([name])
    # The remains do not count as a hit any more, and writing again mends them.
    assert store.lookup([name]).num_blocks == 0
    store.put_block(name, payload, attempt=2)
    assert bytes(store.get_blocks([name])[0]) == payload


def test_two_components_of_a_block_share_its_index(store: KvStore) -> None:
    name = PROMPT.hashes[0]
    store.put_block(name, make_bytes("kv", 300), attempt=1)
    store.put_state(name, make_bytes("state", 700), attempt=1)
    assert bytes(store.get_blocks([name])[0]) == make_bytes("kv", 300)
    assert bytes(store.get_state(name)) == make_bytes("state", 700)


def test_lookup_counts_contiguous_blocks_and_finds_the_last_state(store: KvStore) -> None:
    prompt = Prompt("long", tuple(range(BLOCK_TOKENS * 50)))
    hashes = prompt.hashes
    for idx in [*range(40), 45]:
        store.put_block(hashes[idx], b"kv", attempt=1)
    assert store.lookup(hashes) == PrefixMatch(
        num_blocks=40, resume_blocks=0, replay_tokens=40 * BLOCK_TOKENS
    )
    for idx in (0, 7, 45):
        store.put_state(hashes[idx], b"state", attempt=1)
    assert store.lookup(hashes) == PrefixMatch(
        num_blocks=40, resume_blocks=8, replay_tokens=32 * BLOCK_TOKENS
    )
    store.put_state(hashes[39], b"state", attempt=1)
    assert store.lookup(hashes).resume_blocks == 40


def test_salts_keep_tenants_apart(store: KvStore) -> None:
    one, two = Prompt("a", tuple(range(8)), salt="one"), Prompt("b", tuple(range(8)), salt="two")
    store.put_block(one.hashes[0], b"kv", attempt=1)
    assert store.lookup(one.hashes).num_blocks == 1
    assert store.lookup(two.hashes).num_blocks == 0
