"""Whether a stored value is what its reader asked for. Pure, no I/O.

Invariant: every bit of a header is either predicted by the reader or covered by the payload
digest, so a changed, swapped, shortened or renamed value never passes.
"""

from __future__ import annotations

from typing import NamedTuple

from kvstore.buffers import Buffer
from kvstore.digests import payload_digest
from kvstore.headers import (
    HEADER_BYTES,
    MAX_SEGMENTS,
    HeaderError,
    flags_of,
    pack_header,
    unpack_header,
)
from kvstore.keys import Component


class Expected(NamedTuple):
    """What the reader knows of a segment before it sees it.

    `num_segments` and `digest` are None where only the store knows them (a shared block read
    without a ticket); both are then taken from the header, which the digest of an index record or
    of the payload confirms.
    """

    fingerprint: bytes
    name: bytes
    component: Component
    segment: int
    attempt: int
    num_segments: int | None = None
    num_bytes: int | None = None
    digest: bytes | None = None


class Verified(NamedTuple):
    """A segment that passed: its header as stored, what the header says, and the payload."""

    header: bytes
    num_segments: int
    digest: bytes
    payload: memoryview


def verify_segment(value: Buffer, expected: Expected, digest: bytes | None = None) -> Verified:
    """Checks one stored value against its name and its digest.

    Args:
        value: Header and payload as read.
        expected: What this value must be.
        digest: Digest of the payload if it was computed already, while it arrived.

    Returns:
        The header, and the payload as a view into `value`.

    Raises:
        HeaderError: The first check that failed, by name.
    """
    payload = memoryview(value)[HEADER_BYTES:]
    stored = bytes(value[:HEADER_BYTES])
    if digest is None:
        digest = payload_digest(payload)
    # Nearly every value is right: then its header is, byte for byte, the one we would write.
    fingerprint, name, component, segment, attempt, count, num_bytes, wanted_digest = expected
    num_segments = count or 1
    wanted = pack_header(
        flags=flags_of(component, num_segments),
        fingerprint=fingerprint,
        name=name,
        component=component,
        segment=segment,
        num_segments=num_segments,
        num_bytes=len(payload) if num_bytes is None else num_bytes,
        digest=digest if wanted_digest is None else wanted_digest,
        attempt=attempt,
    )
    if (
        stored == wanted
        and segment < num_segments
        and num_bytes in (None, len(payload))
        and wanted_digest in (None, digest)
    ):
        return Verified(stored, num_segments, digest, payload)
    return _find_fault(stored, payload, digest, expected)


def _find_fault(stored: bytes, payload: memoryview, digest: bytes, expected: Expected) -> Verified:
    """Field by field: the first one that is wrong, or a payload in segments read by its first."""
    header = unpack_header(stored)
    _check("fingerprint", header.fingerprint.hex(), expected.fingerprint.hex())
    _check("name", header.name.hex(), expected.name[:8].hex())
    _check("component", header.component, int(expected.component))
    _check("rank", header.rank, 0)
    _check("segment", header.segment, expected.segment)
    _check("attempt", header.attempt, expected.attempt)
    if expected.num_segments is not None:
        _check("count", header.num_segments, expected.num_segments)
    if not expected.segment < header.num_segments <= MAX_SEGMENTS:
        raise HeaderError("count", f"segment count is {header.num_segments}")
    _check("flags", header.flags, flags_of(header.component, header.num_segments))
    _check("length", len(payload), header.num_bytes)
    if expected.num_bytes is not None:
        _check("length", header.num_bytes, expected.num_bytes)
    if expected.digest is not None:
        _check("digest", header.digest.hex(), expected.digest.hex())
    _check("digest", digest.hex(), header.digest.hex())
    return Verified(stored, header.num_segments, digest, payload)


def _check(reason: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise HeaderError(reason, f"{reason} is {found}, {wanted} was expected")
