"""Payloads made ready to be written: cut into segments, hashed, each with its header. No I/O.

A payload up to the segment size is one self-indexed value; a larger one is split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.buffers import Buffer, flat_view
from kvstore.digests import combine_digests, payload_digest
from kvstore.headers import MAX_SEGMENTS, flags_of, pack_header
from kvstore.keys import TAIL_COMPONENTS, Component, data_key, tail_key
from kvstore.records import SegmentDigest


class PayloadRef(NamedTuple):
    """Name of one payload.

    Attributes:
        component: What it is; tail components belong to a hand-off, the others to a block.
        name: Block hash (32 bytes) or hand-off id (16 bytes).
        position: Place in the request of the caller, for errors.
        attempt: Attempt of the hand-off; 0 in shared blocks.
    """

    component: Component
    name: bytes
    position: int = 0
    attempt: int = 0

    def key(self, fingerprint: bytes, segment: int) -> bytes:
        """Key of one of its segments."""
        if self.component in TAIL_COMPONENTS:
            return tail_key(fingerprint, self.name.hex(), self.component, segment)
        return data_key(fingerprint, self.name, self.component, segment)


def block_refs(hashes: Sequence[bytes], component: Component = Component.KV) -> list[PayloadRef]:
    """References to a component of the blocks of a chain."""
    return [PayloadRef(component, name, idx) for idx, name in enumerate(hashes)]


class SealedPayload(NamedTuple):
    """A payload ready to be written: its segments with headers and digests."""

    ref: PayloadRef
    headers: tuple[bytes, ...]
    segments: tuple[memoryview, ...]
    digests: tuple[bytes, ...]

    @property
    def digest(self) -> bytes:
        """Digest of the whole payload."""
        return combine_digests(self.digests)

    @property
    def num_bytes(self) -> int:
        """Payload bytes, headers not counted."""
        return sum(map(len, self.segments))

    def segment_digests(self) -> tuple[SegmentDigest, ...]:
        """Lengths and digests as a ticket body lists them."""
        return tuple(
            SegmentDigest(num_bytes=len(segment), digest=digest)
            for segment, digest in zip(self.segments, self.digests, strict=True)
        )


def seal(
    ref: PayloadRef, payload: Buffer, *, fingerprint: bytes, segment_bytes: int
) -> SealedPayload:
    """Cuts a payload and computes digests and headers.

    Raises:
        ValueError: It has more than the allowed number of segments.
    """
    view = flat_view(payload)
    if len(view) <= segment_bytes:
        digest = payload_digest(view)
        header = _header(ref, 0, 1, len(view), digest, fingerprint)
        return SealedPayload(ref, (header,), (view,), (digest,))
    segments = tuple(
        view[start : start + segment_bytes] for start in range(0, len(view), segment_bytes)
    )
    if len(segments) > MAX_SEGMENTS:
        raise ValueError(
            f"{ref.component.kind} payload has {len(view)} bytes, "
            f"{MAX_SEGMENTS} segments of {segment_bytes} bytes are the limit; raise segment_bytes"
        )
    digests = tuple(map(payload_digest, segments))
    return _with_headers(ref, segments, digests, fingerprint)


def rename(sealed: SealedPayload, ref: PayloadRef, *, fingerprint: bytes) -> SealedPayload:
    """The same payload under another name, without hashing it again."""
    return _with_headers(ref, sealed.segments, sealed.digests, fingerprint)


def _with_headers(
    ref: PayloadRef,
    segments: tuple[memoryview, ...],
    digests: tuple[bytes, ...],
    fingerprint: bytes,
) -> SealedPayload:
    num_segments = len(segments)
    headers = tuple(
        _header(ref, number, num_segments, len(segment), digest, fingerprint)
        for number, (segment, digest) in enumerate(zip(segments, digests, strict=True))
    )
    return SealedPayload(ref, headers, segments, digests)


def _header(
    ref: PayloadRef,
    number: int,
    num_segments: int,
    num_bytes: int,
    digest: bytes,
    fingerprint: bytes,
) -> bytes:
    return pack_header(
        fingerprint=fingerprint,
        name=ref.name,
        component=ref.component,
        segment=number,
        num_segments=num_segments,
        num_bytes=num_bytes,
        digest=digest,
        flags=flags_of(ref.component, num_segments),
        attempt=ref.attempt,
    )
