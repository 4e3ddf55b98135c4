"""Chained digests that name blocks of tokens.

A block is a fixed number of token ids; only full blocks have a name. The name of a block is the
SHA-256 of the canonical CBOR encoding of `[parent, [token ids], extra]`: `parent` is the name of
the block before it (`ROOT` for the first), `extra` is null or, in the first block of a salted
chain, `[["cache_salt", salt]]`. Equal names therefore mean equal tokens from the start on.

Three parts of the system and foreign gateways compute these names independently, so they depend on
nothing hidden: no process seed, no library version, the standard library alone. The form is that
of vLLM's `sha256_cbor`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

DIGEST_BYTES = 32
MAX_TOKEN_ID = 2**32 - 1

_NULL = b"\xf6"
_BYTES, _TEXT, _ARRAY = 2, 3, 4  # CBOR major types; 0 is the unsigned integer


def _head(major: int, value: int) -> bytes:
    """Shortest CBOR head (RFC 8949, 4.2.1) of a major type with its argument."""
    if value < 24:
        return bytes((major << 5 | value,))
    for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * width:
            return bytes((major << 5 | info,)) + value.to_bytes(width, "big")
    raise ValueError(f"{value} does not fit in 64 bits")


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8")
    return _head(_TEXT, len(encoded)) + encoded


class _Tokens(dict[int, bytes]):
    """CBOR of token ids, kept as they are met, so that hashing a block is a join of what is kept.

    Bounded: ids beyond every known vocabulary are encoded anew each time.
    """

    _KEPT_BELOW = 1 << 18

    def __missing__(self, token_id: int) -> bytes:
        if not 0 <= token_id <= MAX_TOKEN_ID:
            raise ValueError(f"token id {token_id} is not in 0..{MAX_TOKEN_ID}")
        encoded = _head(0, token_id)
        if token_id < self._KEPT_BELOW:
            self[token_id] = encoded
        return encoded


_TOKENS = _Tokens()

ROOT: bytes = hashlib.sha256(_text("vllm-none-hash")).digest()
"""Parent of the first block of every chain."""


def extend(parent: bytes, token_ids: Sequence[int], *, salt: str = "") -> bytes:
    """Name of the block that holds `token_ids` behind the block named `parent`.

    Args:
        parent: Name of the block before, 32 bytes; `ROOT` for the first block.
        token_ids: All token ids of the block, each in 0..2^32-1.
        salt: Isolates chains of tenants. Only the first block carries it.

    Raises:
        ValueError: a token id is out of range or the parent is not 32 bytes long.
    """
    if len(parent) != DIGEST_BYTES:
        raise ValueError(f"parent has {len(parent)} bytes, a block hash has {DIGEST_BYTES}")
    if salt and parent == ROOT:
        extra = _head(_ARRAY, 1) + _head(_ARRAY, 2) + _text("cache_salt") + _text(salt)
    else:
        extra = _NULL
    return hashlib.sha256(
        b"".join(
            (
                _head(_ARRAY, 3),
                _head(_BYTES, len(parent)) + parent,
                _head(_ARRAY, len(token_ids)),
                *map(_TOKENS.__getitem__, token_ids),
                extra,
            )
        )
    ).digest()


def chain(token_ids: Sequence[int], block_tokens: int, *, salt: str = "") -> list[bytes]:
    """Names of all full blocks of a sequence, first block first.

    Args:
        token_ids: The sequence; tokens behind the last full block are ignored.
        block_tokens: Tokens per block, at least 1.
        salt: Isolates chains of tenants; empty means shared.

    Returns:
        `len(token_ids) // block_tokens` digests of 32 bytes.

    Raises:
        ValueError: `block_tokens` is below 1 or a token id is out of range.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}, it must be at least 1")
    parent = ROOT
    names = []
    for end in range(block_tokens, len(token_ids) + 1, block_tokens):
        parent = extend(parent, token_ids[end - block_tokens : end], salt=salt)
        names.append(parent)
    return names


def low64(digest: bytes) -> int:
    """The unsigned 64-bit form of a block hash that KV events carry: its last eight bytes.

    Too short to be a key: stores are keyed by the full digest.
    """
    return int.from_bytes(digest[-8:], "big")
