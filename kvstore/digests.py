"""Digests of payloads: of one, of one that is still arriving, of one in several segments."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from kvstore.buffers import Buffer
from kvstore.headers import HEADER_BYTES

DIGEST_BYTES = 16


def payload_digest(payload: Buffer) -> bytes:
    """xxh3_128 of a payload, 16 bytes, canonical (big-endian) form."""
    return xxhash.xxh3_128_digest(payload)


class RunningDigest:
    """`payload_digest` of a stored value whose bytes arrive bit by bit; its header is left out.

    Hashing each piece at once finds it in the processor's cache; hashing a long value at its end
    reads it from memory again. A value that fits the cache is hashed as a whole.
    """

    _CACHED_BYTES = 512 << 10

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._value = memoryview(b"")
        self._done = HEADER_BYTES

    def begin(self, value: memoryview) -> None:
        """The next value will arrive in this memory."""
        self._value = value
        self._done = HEADER_BYTES
        if len(value) > self._CACHED_BYTES:
            self._hash.reset()

    def advance(self, num_bytes: int) -> None:
        """So many bytes of the value are there now, header included."""
        if num_bytes > self._done and len(self._value) > self._CACHED_BYTES:
            self._hash.update(self._value[self._done : num_bytes])
            self._done = num_bytes

    def finish(self, value: memoryview) -> bytes:
        """Digest of the payload of a value that is there as a whole."""
        if self._done == HEADER_BYTES:
            return payload_digest(value[HEADER_BYTES:])
        self._hash.update(value[self._done :])
        return self._hash.digest()


def combine_digests(digests: Sequence[bytes]) -> bytes:
    """Digest of a payload: its only segment's, or the digest of those of its segments in order."""
    return digests[0] if len(digests) == 1 else xxhash.xxh3_128_digest(b"".join(digests))
