"""KV events as bytes: MessagePack batches `[ts, events, dp_rank]` of maps that carry their `type`.

Pure functions. The form is vLLM's, so that its consumers read ours: hashes are the low 64 bits of
our names, unsigned. Entries of a shared store say medium STORAGE and locality REMOTE, since only
LOCAL entries belong in the prefix index of one worker.

Invariant: what vLLM's types declare without a default is always there, nil where we have nothing to
say; what has a default is left out when it is None. Its decoder refuses a batch otherwise.

The salt of a chain is never told, in `extra_keys` or elsewhere: it is what keeps one tenant from
naming the blocks of another. The names of a salted chain can be matched, and not recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import msgpack

from disagg import block_hash

MEDIUM = "STORAGE"
LOCALITY = "REMOTE"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Blocks of one chain, one after another, that can be read from now on.

    `parent_block_hash` is the block before the first of them; None at the start of a chain.
    `token_ids` are those of all blocks, or nothing where the writer keeps them to itself.
    `extra_keys` would be one entry per block; ours have none.
    """

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str = MEDIUM
    lora_name: str | None = None
    extra_keys: tuple[object, ...] | None = None
    group_idx: int | None = None
    locality: str = LOCALITY


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """Blocks that were deleted, failed a check, or turned out to be gone."""

    block_hashes: tuple[int, ...]
    medium: str = MEDIUM
    group_idx: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllBlocksCleared:
    """Nothing is stored any more."""


_REQUIRED_NONE = frozenset({"parent_block_hash", "lora_id", "lora_name", "medium"})

Event = BlockStored | BlockRemoved | AllBlocksCleared


def stored(
    hashes: Sequence[bytes],
    first: int,
    *,
    block_tokens: int,
    token_ids: Sequence[int] = (),
) -> BlockStored:
    """The event of the blocks of a chain from position `first` on.

    Args:
        hashes: Names of all blocks of the chain, first block first.
        first: Position of the first one that is new.
        block_tokens: Tokens of a block.
        token_ids: All tokens of the chain's full blocks; empty to keep them out of the event.
    """
    stop = len(hashes) * block_tokens
    return BlockStored(
        block_hashes=tuple(block_hash.low64(name) for name in hashes[first:]),
        parent_block_hash=block_hash.low64(hashes[first - 1]) if first else None,
        token_ids=tuple(token_ids[first * block_tokens : stop]),
        block_size=block_tokens,
    )


def encode_batch(ts: float, events: Sequence[Event], dp_rank: int) -> bytes:
    """One message: the time in seconds since 1970, the events, the data-parallel rank."""
    return bytes(msgpack.packb([ts, [_as_map(event) for event in events], dp_rank]))


def _as_map(event: Event) -> dict[str, object]:
    """A map with the type first; what is None is left out where a reader has a default for it."""
    values: dict[str, object] = {"type": type(event).__name__}
    for item in fields(event):
        value = getattr(event, item.name)
        if value is not None or item.name in _REQUIRED_NONE:
            values[item.name] = value
    return values
