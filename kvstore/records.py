"""Small records in the store, index records and ticket bodies: MessagePack behind the usual header.

Pure functions. A record is read with bounded memory and trusted only after its header and digest
were checked; whatever else it is, is a `BlockCorrupt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack

from kvstore.buffers import Buffer
from kvstore.digests import DIGEST_BYTES, payload_digest
from kvstore.errors import BlockCorrupt
from kvstore.headers import FLAG_SELF_INDEXED, MAX_SEGMENT_BYTES, MAX_SEGMENTS, Header, HeaderError
from kvstore.keys import Component
from kvstore.verification import Expected, verify_segment

MAX_RECORD_BYTES = 64 << 20
_INDEX_VERSION = 1
_ATTEMPT_DIGEST_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDigest:
    """Length and digest of one stored segment."""

    num_bytes: int
    digest: bytes


def seal_record(payload: bytes, *, fingerprint: bytes, name: bytes, attempt: int = 0) -> bytes:
    """An index record or a ticket body as stored: header and payload."""
    header = Header(
        fingerprint=fingerprint,
        name=name[:8],
        component=Component.RECORD,
        segment=0,
        num_segments=1,
        num_bytes=len(payload),
        digest=payload_digest(payload),
        flags=FLAG_SELF_INDEXED,
        attempt=attempt,
    )
    return header.pack() + payload


def open_record(
    stored: Buffer, *, fingerprint: bytes, name: bytes, kind: str, attempt: int = 0
) -> memoryview:
    """Payload of a stored record, its header and digest verified.

    Raises:
        BlockCorrupt: A check failed.
    """
    expected = Expected(
        fingerprint=fingerprint,
        name=name,
        component=Component.RECORD,
        segment=0,
        attempt=attempt,
        num_segments=1,
    )
    try:
        return verify_segment(stored, expected).payload
    except HeaderError as error:
        raise BlockCorrupt(kind, 0, error.reason, str(error)) from None


def unpack_array(payload: Buffer, num_fields: int, kind: str) -> list[object]:
    """A MessagePack array of exactly `num_fields` fields, with bounded memory.

    Raises:
        BlockCorrupt: Anything else.
    """
    size = len(payload)
    if size > MAX_RECORD_BYTES:
        raise BlockCorrupt(kind, 0, "form", f"{size} bytes are more than {MAX_RECORD_BYTES}")
    try:
        fields = msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            max_array_len=min(size, MAX_SEGMENTS + 64),
            max_map_len=64,
            max_str_len=min(size, 1 << 16),
            max_bin_len=size,
            max_ext_len=0,
        )
    # The library raises its own errors, ValueError and (deep nesting) RecursionError.
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BlockCorrupt(kind, 0, "form", f"not MessagePack: {type(error).__name__}") from None
    if not isinstance(fields, list) or len(fields) != num_fields:
        raise BlockCorrupt(kind, 0, "form", f"not an array of {num_fields} fields")
    return fields


def decode_segment(kind: str, item: object) -> SegmentDigest:
    """One `[num_bytes, digest]` of a decoded record.

    Raises:
        BlockCorrupt: It is something else.
    """
    match item:
        case [int(num_bytes), bytes(digest)] if (
            0 <= num_bytes <= MAX_SEGMENT_BYTES and len(digest) == DIGEST_BYTES
        ):
            return SegmentDigest(num_bytes=num_bytes, digest=digest)
    raise BlockCorrupt(kind, 0, "form", "a part of it is not a segment")


def encode_index(
    components: Mapping[int, Sequence[SegmentDigest]], producer: str, attempt: int
) -> bytes:
    """Payload of an index record (MessagePack): version, components, producer and its attempt."""
    entries = [
        [component, 0, [[part.num_bytes, part.digest] for part in parts]]
        for component, parts in sorted(components.items())
    ]
    return bytes(msgpack.packb([_INDEX_VERSION, entries, producer, attempt], use_bin_type=True))


def decode_index(payload: Buffer) -> dict[int, tuple[SegmentDigest, ...]]:
    """Segments by component.

    Raises:
        BlockCorrupt: Not an index record of this version.
    """
    version, entries, _producer, _attempt = unpack_array(payload, 4, "index")
    components: dict[int, tuple[SegmentDigest, ...]] = {}
    if version != _INDEX_VERSION or not isinstance(entries, list):
        raise BlockCorrupt("index", 0, "form", "not an index record of version 1")
    for entry in entries:
        match entry:
            case [int(component), 0, [_, *_] as parts]:
                components[component] = tuple(decode_segment("index", part) for part in parts)
            case _:
                raise BlockCorrupt("index", 0, "form", "an entry is not a component")
    return components


def seal_attempt(key: bytes, attempt: int) -> bytes:
    """The record of a request's newest attempt as stored: the number, and a digest of both.

    Not behind the usual header: a script has to read, check and write it, and SHA-1 is the digest
    that scripts have. `attempt_fence.lua` does the same.
    """
    number = b"%d" % attempt
    digest = hashlib.sha1(b"%s:%s" % (key, number), usedforsecurity=False).hexdigest()
    return b"%s:%s" % (number, digest[:_ATTEMPT_DIGEST_DIGITS].encode())


def open_attempt(key: bytes, stored: bytes) -> int | None:
    """The attempt of a stored record; None if it is damaged or that of another request."""
    number = stored.partition(b":")[0]
    # 4 bytes have at most 10 digits, and longer numbers are slow to parse.
    if not (number.isdigit() and len(number) <= 10 and stored == seal_attempt(key, int(number))):
        return None
    return int(number)
