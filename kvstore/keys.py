"""Names and headers of everything stored: pure functions, no I/O.

A key says what a value is; a 64-byte header inside the value says it again, so that a value under
the wrong name is caught by whoever reads it. Every bit of a header is either predicted by the
reader or covered by the payload digest:

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

Invariant: no user text in a key; the braces keep one block or one hand-off in one cluster slot.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

import xxhash

BlockHash = NewType("BlockHash", bytes)

HASH_BYTES = 32
HANDOFF_ID_BYTES = 16
FINGERPRINT_BYTES = 8
DIGEST_BYTES = 16
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
_PREFIX = b"dkv1"
ALL_PREFIX = _PREFIX + b":"
ATTEMPT_PREFIX = _PREFIX + b":a:"
BODY_PREFIX = _PREFIX + b":h:"
LEASE_PREFIX = _PREFIX + b":l:"
assert _HEADER.size == HEADER_BYTES

Buffer = bytes | bytearray | memoryview
"""Opaque bytes. A memoryview must be contiguous; its items may have any format."""


def flat_view(buffer: Buffer) -> memoryview:
    """The bytes of a contiguous buffer as a one-dimensional view, without a copy."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        return memoryview(b"")  # views with a zero in their shape cannot be cast
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class Component(enum.IntEnum):
    """What a payload is. RECORD is an index record or a ticket body, WRITER a note for traces."""

    RECORD = 0
    KV = 1
    STATE = 2
    TAIL_KV = 3
    TAIL_STATE = 4
    WRITER = 5

    @property
    def kind(self) -> str:
        """Name used in errors and counters."""
        return self.name.lower()


_COMPONENTS = frozenset(map(int, Component))
TAIL_COMPONENTS = (Component.TAIL_KV, Component.TAIL_STATE)


def data_key(
    fingerprint: bytes, name: bytes, component: Component, segment: int, *, rank: int = 0
) -> bytes:
    """Key of one segment of a shared block; `name` is its 32-byte chain hash."""
    return b"%s:%s:b:{%s}:%d:%d:%d" % (
        _PREFIX,
        fingerprint.hex().encode(),
        name.hex().encode(),
        component,
        rank,
        segment,
    )


def first_keys(fingerprint: bytes, component: Component, names: Sequence[bytes]) -> list[bytes]:
    """Keys of the first segment of a component of many blocks; `data_key` for a whole chain."""
    if not names:
        return []
    # All names are of one length: one conversion and one substitution instead of one per block.
    head, tail = f"dkv1:{fingerprint.hex()}:b:{{", f"}}:{int(component)}:0:0"
    text = b"".join(names).hex("|", HASH_BYTES).replace("|", f"{tail}|{head}")
    return f"{head}{text}{tail}".encode().split(b"|")


def index_key(fingerprint: bytes, name: bytes) -> bytes:
    """Key of the index record of a block with a component of several segments."""
    return b"%s:%s:m:{%s}" % (_PREFIX, fingerprint.hex().encode(), name.hex().encode())


def tail_prefix(fingerprint: bytes, handoff_id: str) -> bytes:
    """What all tail keys of a hand-off start with; the `tail_key` of its ticket."""
    return b"%s:%s:t:{%s}" % (_PREFIX, fingerprint.hex().encode(), handoff_id.encode())


def tail_key(
    fingerprint: bytes, handoff_id: str, component: Component, segment: int, *, rank: int = 0
) -> bytes:
    """Key of one segment of a tail component of a hand-off."""
    return b"%s:%d:%d:%d" % (tail_prefix(fingerprint, handoff_id), component, rank, segment)


def body_key(handoff_id: str) -> bytes:
    """Key of the ticket body of a hand-off."""
    return b"%s:h:{%s}" % (_PREFIX, handoff_id.encode())


def lease_key(handoff_id: str) -> bytes:
    """Key of the lease of a hand-off."""
    return b"%s:l:{%s}" % (_PREFIX, handoff_id.encode())


def attempt_key(request_id: str) -> bytes:
    """Key of the newest attempt of a request. The id is user text, so it goes in as a digest."""
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return b"%s:a:{%s}" % (_PREFIX, digest.encode())


def data_prefix(fingerprint: bytes) -> bytes:
    """What the keys of all blocks and tails of a layout start with."""
    return b"%s:%s:" % (_PREFIX, fingerprint.hex().encode())


class KeyName(NamedTuple):
    """What a key says: `kind` is `kv`, `state`, `tail_kv`, `tail_state`, `index`, `body`, ...

    Attributes:
        kind: A component's kind, or `index`, `body`, `lease`, `attempt`, `unknown`.
        fingerprint: Layout fingerprint, 16 hex digits; empty where a key has none.
        name: The part between the braces.
        segment: Number of the segment.
    """

    kind: str
    fingerprint: str = ""
    name: str = ""
    segment: int = 0


_CONTROL_KINDS = {b"h": "body", b"l": "lease", b"a": "attempt"}


def parse_key(key: bytes) -> KeyName:
    """Takes a key apart; anything that is not ours is `unknown`."""
    match key.split(b":"):
        case [b"dkv1", kind, name] if kind in _CONTROL_KINDS:
            return KeyName(_CONTROL_KINDS[kind], "", _unbraced(name))
        case [b"dkv1", fingerprint, b"m", name]:
            return KeyName("index", fingerprint.decode("ascii", "replace"), _unbraced(name))
        case [b"dkv1", fingerprint, b"b" | b"t", name, component, b"0", segment] if (
            component.isdigit() and segment.isdigit() and int(component) in _COMPONENTS
        ):
            return KeyName(
                Component(int(component)).kind,
                fingerprint.decode("ascii", "replace"),
                _unbraced(name),
                int(segment),
            )
    return KeyName("unknown")


def _unbraced(name: bytes) -> str:
    return name.strip(b"{}").decode("ascii", "replace")


def handoff_id_of_key(key: bytes) -> str:
    """The part between the braces of a key; empty if it has none."""
    start, end = key.find(b"{"), key.find(b"}")
    return key[start + 1 : end].decode("ascii", "replace") if 0 <= start < end else ""


def is_handoff_id(text: str) -> bool:
    """Whether a string is a hand-off id: 32 lower-case hex digits."""
    return len(text) == 2 * HANDOFF_ID_BYTES and not set(text) - set("0123456789abcdef")


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


class HeaderError(ValueError):
    """A header that is not one, or not the expected one; `reason` is the failed check."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


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
    if reserved != bytes(4):
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


def flags_of(component: int, num_segments: int) -> int:
    """Flags a header of this component and segment count must have."""
    if component in TAIL_COMPONENTS:
        return FLAG_TAIL
    return FLAG_SELF_INDEXED if num_segments == 1 else 0


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
    wanted = _HEADER.pack(
        MAGIC,
        HEADER_VERSION,
        flags_of(component, num_segments),
        fingerprint,
        name[:8],
        component,
        0,
        segment,
        num_segments,
        len(payload) if num_bytes is None else num_bytes,
        digest if wanted_digest is None else wanted_digest,
        attempt,
        _RESERVED,
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
