"""The bytes of events are what vLLM's consumers read."""

from __future__ import annotations

import msgpack
import msgspec
import pytest

from disagg import block_hash
from kvstore.events.form import AllBlocksCleared, BlockRemoved, encode_batch, stored

TOKENS = list(range(12))
HASHES = block_hash.chain(TOKENS, 4)


# The types a vLLM consumer decodes with: the same fields, the same ones without a default.


class TheirEvent(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class TheirStored(TheirEvent, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[object, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class TheirRemoved(TheirEvent, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


class TheirCleared(TheirEvent, tag="AllBlocksCleared"):
    pass


class TheirBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[TheirStored | TheirRemoved | TheirCleared]
    data_parallel_rank: int | None = None


@pytest.mark.parametrize("first", [0, 1])
def test_typed_readers_decode_it_and_would_write_the_same(first: int) -> None:
    ours = [
        stored(HASHES, first, block_tokens=4, token_ids=TOKENS),
        BlockRemoved(block_hashes=(7,)),
        AllBlocksCleared(),
    ]
    data = encode_batch(12.5, ours, 3)
    batch = msgspec.msgpack.decode(data, type=TheirBatch)
    told, removed, cleared = batch.events
    assert isinstance(told, TheirStored)
    assert told.block_hashes == [block_hash.low64(name) for name in HASHES[first:]]
    assert (told.lora_id, told.lora_name, told.locality) == (None, None, "REMOTE")
    assert removed == TheirRemoved(block_hashes=[7], medium="STORAGE")
    assert cleared == TheirCleared()
    assert batch.data_parallel_rank == 3
    assert msgspec.msgpack.encode(batch) == data


def test_a_stored_chain_names_its_parent_tokens_and_medium() -> None:
    batch = msgpack.unpackb(
        encode_batch(12.5, [stored(HASHES, 1, block_tokens=4, token_ids=TOKENS)], 3)
    )
    assert batch == [
        12.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [block_hash.low64(name) for name in HASHES[1:]],
                "parent_block_hash": block_hash.low64(HASHES[0]),
                "token_ids": TOKENS[4:],
                "block_size": 4,
                "lora_id": None,
                "medium": "STORAGE",
                "lora_name": None,
                "locality": "REMOTE",
            }
        ],
        3,
    ]


def test_hashes_are_the_low_64_bits_of_the_published_vectors() -> None:
    names = block_hash.chain([0, 1, 2, 3, 4, 5, 6, 70000], 4)
    event = stored(names, 0, block_tokens=4)
    # The last 16 digits of the vectors of the block hash.
    assert event.block_hashes == (0x0F1A5C4C20741898, 0x2F8B9B03DFB7FF26)
    assert event.parent_block_hash is None
    assert event.token_ids == ()


def test_removals_and_clearings() -> None:
    (_, events, rank) = msgpack.unpackb(
        encode_batch(1.0, [BlockRemoved(block_hashes=(7, 2**64 - 1)), AllBlocksCleared()], 0)
    )
    assert events == [
        {"type": "BlockRemoved", "block_hashes": [7, 2**64 - 1], "medium": "STORAGE"},
        {"type": "AllBlocksCleared"},
    ]
    assert rank == 0
