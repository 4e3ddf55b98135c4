"""The bytes of events are what vLLM's consumers read."""

from __future__ import annotations

import msgpack

from disagg import block_hash
from kvstore.events.form import AllBlocksCleared, BlockRemoved, encode_batch, stored

TOKENS = list(range(12))
HASHES = block_hash.chain(TOKENS, 4)


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
                "medium": "STORAGE",
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
