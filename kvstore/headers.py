"""The 64 bytes in front of every stored value: what it is, once more. Pure, no I/O.

A key says what a value is; the header inside the value says it again, so that a value under the
wrong name is caught by whoever reads it:

    offset  0  4  magic `DKV1`            28  2  segment index
            4  2  header version          30  2  segment count
            6  2  flags                   32  8  payload bytes of this segment
            8  8  layout fingerprint      40 16  xxh3_128 of this segment's payload
           16  8  first bytes of name     56  4  attempt (0 in shared blocks)
           24  2  component               60  4  reserved, 0
           26  2  rank

All integers are little-endian; the digest is in xxhash's canonical (big-endian) form. A shared
block belongs to no attempt, so its attempt is 0: two attempts that compute the same block write
the same bytes. Tails and ticket bodies carry the attempt of their hand-off.

Whether a header is the right one is for `kvstore.verification` to say; here only its form counts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kvstore.buffers import Buffer
from kvstore.keys import TAIL_COMPONENTS

HEADER_BYTES = 64
HEADER_VERSION = 1
MAX_SEGMENT_BYTES = 4 << 20
MAX_SEGMENTS = 4096
MAGIC = b"DKV1"

BAD_TAG = b"!tag" + bytes(HEADER_BYTES - 4)
"""What a store with keyed tags hands out in place of a value whose tag is wrong."""

FLAG_SELF_INDEXED = 1
FLAG_TAIL = 2

_HEADER = struct.Struct("<4sHH8s8sHHHHQ16sI4s")
_RESERVED = bytes(4)
assert _HEADER.size == HEADER_BYTES


class HeaderError(ValueError):
    """A header that is not one, or not the expected one; `reason` is the failed check."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The 64 bytes in front of a stored payload. `name` is 8 bytes: the start of hash or id."""

    fingerprint: bytes
    name: bytes
    component: int
    segment: int
    num_segments: int
    num_bytes: int
    digest: bytes
    flags: int = 0
    attempt: int = 0
    rank: int = 0

    def pack(self) -> bytes:
        """The header as stored."""
        return pack_header(
            fingerprint=self.fingerprint,
            name=self.name,
            component=self.component,
            segment=self.segment,
            num_segments=self.num_segments,
            num_bytes=self.num_bytes,
            digest=self.digest,
            flags=self.flags,
            attempt=self.attempt,
            rank=self.rank,
        )


def flags_of(component: int, num_segments: int) -> int:
    """Flags a header of this component and segment count must have."""
    if component in TAIL_COMPONENTS:
        return FLAG_TAIL
    return FLAG_SELF_INDEXED if num_segments == 1 else 0


def pack_header(
    *,
    fingerprint: bytes,
    name: bytes,
    component: int,
    segment: int,
    num_segments: int,
    num_bytes: int,
    digest: bytes,
    flags: int,
    attempt: int,
    rank: int = 0,
) -> bytes:
    """A header as stored; `name` may be the whole hash or id."""
    return _HEADER.pack(
        MAGIC,
        HEADER_VERSION,
        flags,
        fingerprint,
        name[:8],
        component,
        rank,
        segment,
        num_segments,
        num_bytes,
        digest,
        attempt,
        _RESERVED,
    )


def unpack_header(value: Buffer) -> Header:
    """Reads the header of a stored value.

    Raises:
        HeaderError: Too short, wrong magic or version, or reserved bytes that are not 0.
    """
    if len(value) < HEADER_BYTES:
        raise HeaderError("length", f"{len(value)} bytes are fewer than a header has")
    (
        magic,
        version,
        flags,
        fingerprint,
        name,
        component,
        rank,
        segment,
        num_segments,
        num_bytes,
        digest,
        attempt,
        reserved,
    ) = _HEADER.unpack_from(value)
    if magic == BAD_TAG[:4]:
        raise HeaderError("tag", "its keyed tag is missing or wrong")
    if magic != MAGIC:
        raise HeaderError("magic", f"magic is {magic!r}, {MAGIC!r} was expected")
    if version != HEADER_VERSION:
        raise HeaderError("version", f"header version is {version}, this side reads 1")
    if reserved != _RESERVED:
        raise HeaderError("reserved", "reserved bytes are not 0")
    return Header(
        fingerprint=fingerprint,
        name=name,
        component=component,
        segment=segment,
        num_segments=num_segments,
        num_bytes=num_bytes,
        digest=digest,
        flags=flags,
        attempt=attempt,
        rank=rank,
    )
