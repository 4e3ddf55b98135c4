"""Payloads to segments and back: what stands between opaque bytes and keys.

A payload up to the segment size is one self-indexed value. A larger one is split; a shared one then
also gets an index record, written after its segments, and exists only if the record and every
segment verify. Segments of a tail are listed in the ticket body instead.

Reading verifies each segment as soon as it arrived, while later ones are on the wire. Bytes that
fail are quarantined (deleted if still the same) before the error is raised.

Invariant: nothing leaves `read` that was not verified against its name.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvstore.backends.base import Allocate, BlockStore, PutItem
from kvstore.config import KvStoreConfig
from kvstore.errors import BlockCorrupt, BlockMissing, KvStoreError
from kvstore.keys import (
    HEADER_BYTES,
    MAX_SEGMENTS,
    TAIL_COMPONENTS,
    Buffer,
    Component,
    Expected,
    Header,
    HeaderError,
    Verified,
    combine_digests,
    data_key,
    first_keys,
    flags_of,
    flat_view,
    index_key,
    payload_digest,
    tail_key,
    verify_segment,
)
from kvstore.records import (
    SegmentDigest,
    decode_index,
    encode_index,
    open_record,
    seal_record,
)
from kvstore.statistics import Counters

logger = logging.getLogger(__name__)

_MAX_REMEMBERED = 1 << 16
_MAX_INDEX_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef:
    """Name of one payload.

    Attributes:
        component: What it is; tail components belong to a hand-off, the others to a block.
        name: Block hash (32 bytes) or hand-off id (16 bytes).
        index: Position the caller knows it by, for errors.
        attempt: Attempt of the hand-off; 0 in shared blocks.
    """

    component: Component
    name: bytes
    index: int = 0
    attempt: int = 0

    def key(self, fingerprint: bytes, segment: int) -> bytes:
        """Key of one of its segments."""
        if self.component in TAIL_COMPONENTS:
            return tail_key(fingerprint, self.name.hex(), self.component, segment)
        return data_key(fingerprint, self.name, self.component, segment)


def block_refs(hashes: Sequence[bytes], component: Component = Component.KV) -> list[PayloadRef]:
    """References to a component of the blocks of a chain."""
    return [
        PayloadRef(component=component, name=name, index=idx) for idx, name in enumerate(hashes)
    ]


@dataclass(frozen=True, slots=True)
class SealedPayload:
    """A payload ready to be written: its segments with headers and digests."""

    ref: PayloadRef
    headers: tuple[bytes, ...]
    segments: tuple[memoryview, ...]
    digests: tuple[bytes, ...]

    @property
    def digest(self) -> bytes:
        """Digest of the whole payload."""
        return combine_digests(list(self.digests))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One payload to read.

    `digest` is what the ticket body says of a shared block, `segments` what it says of a tail;
    both None for a prefix read, which trusts name and header alone.
    """

    ref: PayloadRef
    digest: bytes | None = None
    segments: tuple[SegmentDigest, ...] | None = None


class Payloads:
    """Reads and writes payloads of one layout in one backend. Thread-safe."""

    def __init__(
        self, backend: BlockStore, config: KvStoreConfig, fingerprint: bytes, counters: Counters
    ) -> None:
        self._backend = backend
        self._config = config
        self._fingerprint = fingerprint
        self._counters = counters
        self._lock = threading.Lock()
        # Segment counts of shared payloads with more than one, so that lives are extended whole.
        self._num_segments: OrderedDict[tuple[Component, bytes], int] = OrderedDict()

    def seal(self, ref: PayloadRef, payload: Buffer) -> SealedPayload:
        """Splits a payload and computes digests and headers. No I/O."""
        view = flat_view(payload)
        size = self._config.segment_bytes
        segments = tuple(view[start : start + size] for start in range(0, len(view), size)) or (
            view,
        )
        if len(segments) > MAX_SEGMENTS:
            raise ValueError(
                f"{ref.component.kind} payload has {len(view)} bytes, "
                f"{MAX_SEGMENTS} segments of {size} bytes are the limit; raise segment_bytes"
            )
        digests = tuple(payload_digest(segment) for segment in segments)
        return self._sealed(ref, segments, digests)

    def rename(self, sealed: SealedPayload, ref: PayloadRef) -> SealedPayload:
        """The same payload under another name, without hashing it again."""
        return self._sealed(ref, sealed.segments, sealed.digests)

    def _sealed(
        self, ref: PayloadRef, segments: tuple[memoryview, ...], digests: tuple[bytes, ...]
    ) -> SealedPayload:
        headers = tuple(
            Header(
                fingerprint=self._fingerprint,
                name=ref.name[:8],
                component=ref.component,
                segment=number,
                num_segments=len(segments),
                num_bytes=len(segment),
                digest=digest,
                flags=flags_of(ref.component, len(segments)),
                attempt=ref.attempt,
            ).pack()
            for number, (segment, digest) in enumerate(zip(segments, digests, strict=True))
        )
        return SealedPayload(ref, headers, segments, digests)

    def write(
        self, payloads: Iterable[SealedPayload], ttl_ms: int, *, attempt: int = 0
    ) -> list[SealedPayload]:
        """Writes payloads whose names are free; equal ones that are there already are kept.

        Args:
            payloads: Taken one by one as they are sent: a generator that seals them computes
                digests while earlier payloads are on the wire.
            ttl_ms: Their life.
            attempt: Attempt of the writer, for index records.

        Returns:
            The payloads.

        Raises:
            BlockCorrupt: Other bytes are stored under a name (reason `conflict`); they were
                quarantined, so that writing again succeeds.
            StoreFull, StoreDown: Some may have been written; writing again is harmless.
        """
        taken: list[SealedPayload] = []
        writes: list[tuple[SealedPayload, PutItem]] = []

        def produce() -> Iterator[PutItem]:
            for sealed in payloads:
                taken.append(sealed)
                for item in self._items(sealed, ttl_ms):
                    writes.append((sealed, item))
                    yield item

        self._judge(writes, self._backend.put(produce()))
        for sealed in taken:
            if len(sealed.segments) > 1 and sealed.ref.component not in TAIL_COMPONENTS:
                self._publish_index(sealed, ttl_ms, attempt)
        return taken

    def extend(self, refs: Sequence[PayloadRef], ttl_ms: int) -> list[bool]:
        """Which payloads seem to be there; those live for at least `ttl_ms` more."""
        keys: list[bytes] = []
        spans: list[slice] = []
        for ref in refs:
            start = len(keys)
            count = self._known_segments(ref)
            keys += (ref.key(self._fingerprint, number) for number in range(count))
            if count > 1:
                keys.append(index_key(self._fingerprint, ref.name))
            spans.append(slice(start, len(keys)))
        present = self._backend.lookup(keys, extend_ms=ttl_ms)
        return [all(present[span]) for span in spans]

    def exist(self, component: Component, names: Sequence[bytes]) -> list[bool]:
        """Which payloads seem to be there (their first segment is). Advisory."""
        return self._backend.lookup(first_keys(self._fingerprint, component, names))

    def read(
        self, requests: Sequence[ReadRequest], allocate: Allocate = bytearray
    ) -> list[memoryview]:
        """Verified payloads in the order of the requests.

        Args:
            requests: What to read.
            allocate: Memory for each stored value (64 bytes of header, then the payload).

        Raises:
            BlockMissing: The first payload that is not there, or not completely.
            BlockCorrupt: The first payload that failed a check; its key was quarantined.
        """
        return _Reading(self, requests, allocate).run()

    def _items(self, sealed: SealedPayload, ttl_ms: int) -> Iterator[PutItem]:
        """What to write for a payload. Segments without an index yet are uncommitted."""
        discard_ms = min(ttl_ms, int(self._config.discard_after_s * 1000))
        for number, segment in enumerate(sealed.segments):
            yield PutItem(
                key=sealed.ref.key(self._fingerprint, number),
                header=sealed.headers[number],
                payload=segment,
                ttl_ms=ttl_ms if len(sealed.segments) == 1 else discard_ms,
            )

    def _judge(
        self, writes: Sequence[tuple[SealedPayload, PutItem]], found: list[bytes | None]
    ) -> None:
        """Counts what was written, and finds out whether what was there is the same."""
        vanished = [idx for idx, head in enumerate(found) if head == b""]
        if vanished:
            # Evicted between our write and our look: write again, and take what comes.
            again = self._backend.put([writes[idx][1] for idx in vanished])
            for idx, head in zip(vanished, again, strict=True):
                found[idx] = head
        written = [
            len(item.payload) for (_, item), head in zip(writes, found, strict=True) if head is None
        ]
        self._counters.add(blocks_written=len(written), bytes_written=sum(written))
        conflict: BlockCorrupt | None = None
        for (sealed, item), head in zip(writes, found, strict=True):
            if head == item.header:
                self._counters.add(blocks_deduplicated=1)
            elif head is not None:
                self.quarantine(item.key, head)
                conflict = conflict or BlockCorrupt(
                    sealed.ref.component.kind,
                    sealed.ref.index,
                    "conflict",
                    "other bytes are stored under its name",
                )
        if conflict is not None:
            raise conflict

    def quarantine(self, key: bytes, header: Buffer) -> None:
        """Deletes a value that failed a check, unless it changed meanwhile."""
        if self._backend.quarantine(key, bytes(header[:HEADER_BYTES])):
            self._counters.add(quarantined=1)
            logger.warning("quarantined %s", key.decode("ascii", "replace"))

    # Index records

    def _publish_index(self, sealed: SealedPayload, ttl_ms: int, attempt: int) -> None:
        ref = sealed.ref
        key = index_key(self._fingerprint, ref.name)
        keys = [ref.key(self._fingerprint, number) for number in range(len(sealed.segments))]
        for _ in range(_MAX_INDEX_TRIES):
            stored = self.fetch_raw(key)
            components = self._open_index(ref, key, stored) if stored else {}
            components[int(ref.component)] = sealed.segment_digests()
            record = seal_record(
                encode_index(components, self._config.owner, attempt),
                fingerprint=self._fingerprint,
                name=ref.name,
            )
            if self._backend.put_index(key, keys, stored, record, ttl_ms):
                self._remember(ref, len(keys))
                return
            # The record changed meanwhile; or segments went, evicted or by a reader that found
            # them without their record. Those that are there are kept.
            self._backend.put(self._items(sealed, ttl_ms))
        raise BlockMissing(ref.component.kind, ref.index, "its segments vanish before its index")

    def fetch_raw(self, key: bytes) -> bytes:
        """A value as stored, unverified; empty if there is none."""
        values: list[bytes] = []
        self._backend.get([key], lambda _idx, view: values.append(bytes(view or b"")), bytearray)
        return values[0]

    def _open_index(
        self, ref: PayloadRef, key: bytes, stored: bytes
    ) -> dict[int, tuple[SegmentDigest, ...]]:
        try:
            payload = open_record(
                stored, fingerprint=self._fingerprint, name=ref.name, kind=ref.component.kind
            )
            return decode_index(payload)
        except BlockCorrupt:
            self.quarantine(key, stored)
            return {}

    def index_of(self, ref: PayloadRef) -> tuple[SegmentDigest, ...]:
        """Segments of a shared payload as its index record lists them; empty if there is none."""
        key = index_key(self._fingerprint, ref.name)
        stored = self.fetch_raw(key)
        return self._open_index(ref, key, stored).get(int(ref.component), ()) if stored else ()

    def drop_index(self, ref: PayloadRef) -> None:
        """Deletes record and first segment of an incomplete payload: look-ups then miss it."""
        for key in (index_key(self._fingerprint, ref.name), ref.key(self._fingerprint, 0)):
            self._backend.quarantine(key, b"")

    def _remember(self, ref: PayloadRef, num_segments: int) -> None:
        with self._lock:
            self._num_segments[ref.component, ref.name] = num_segments
            self._num_segments.move_to_end((ref.component, ref.name))
            if len(self._num_segments) > _MAX_REMEMBERED:
                self._num_segments.popitem(last=False)

    def _known_segments(self, ref: PayloadRef) -> int:
        with self._lock:
            return self._num_segments.get((ref.component, ref.name), 1)


class _Wanted(NamedTuple):
    """A segment to read: which request, which segment of it, and what is known of it."""

    idx: int
    number: int
    part: SegmentDigest | None
    num_segments: int | None = None


def _all_of(idx: int, parts: Sequence[SegmentDigest]) -> list[_Wanted]:
    return [_Wanted(idx, number, part, len(parts)) for number, part in enumerate(parts)]


class _Reading:
    """One call of `Payloads.read`: first values of all payloads, then what those ask for."""

    def __init__(
        self, payloads: Payloads, requests: Sequence[ReadRequest], allocate: Allocate
    ) -> None:
        self._payloads = payloads
        self._requests = requests
        self._allocate = allocate
        self._found: list[list[Verified]] = [[] for _ in requests]
        self._failures: dict[int, KvStoreError] = {}
        self._bad: list[tuple[bytes, bytes]] = []

    def run(self) -> list[memoryview]:
        first: list[_Wanted] = []
        for idx, request in enumerate(self._requests):
            if request.segments is None:
                first.append(_Wanted(idx, 0, None))
            else:
                first += _all_of(idx, request.segments)
        self._get(first)
        self._finish_round()
        for idx in range(len(self._requests)):
            if self._requests[idx].segments is None and self._found[idx][0].num_segments > 1:
                self._read_rest(idx)
        self._check_digests()
        results = [
            parts[0].payload
            if len(parts) == 1
            else memoryview(b"".join([part.payload for part in parts]))
            for parts in self._found
        ]
        self._payloads._counters.add(blocks_read=len(results), bytes_read=sum(map(len, results)))
        return results

    def _get(self, wanted: Sequence[_Wanted]) -> None:
        """Reads segments and verifies each as it arrives."""
        fingerprint = self._payloads._fingerprint
        keys = [self._requests[item.idx].ref.key(fingerprint, item.number) for item in wanted]

        def on_value(position: int, value: memoryview | None) -> None:
            self._take(wanted[position], keys[position], value)

        self._payloads._backend.get(keys, on_value, self._allocate)

    def _take(self, wanted: _Wanted, key: bytes, value: memoryview | None) -> None:
        idx, ref = wanted.idx, self._requests[wanted.idx].ref
        if idx in self._failures:
            return
        if value is None:
            self._failures[idx] = BlockMissing(ref.component.kind, ref.index)
            return
        expected = Expected(
            fingerprint=self._payloads._fingerprint,
            name=ref.name,
            component=ref.component,
            segment=wanted.number,
            attempt=ref.attempt,
            num_segments=wanted.num_segments,
            num_bytes=wanted.part.num_bytes if wanted.part else None,
            digest=wanted.part.digest if wanted.part else None,
        )
        try:
            found = verify_segment(value, expected)
        except HeaderError as error:
            self._failures[idx] = BlockCorrupt(
                ref.component.kind, ref.index, error.reason, str(error)
            )
            self._bad.append((key, bytes(value[:HEADER_BYTES])))
            return
        self._found[idx].append(found)

    def _read_rest(self, idx: int) -> None:
        """Segments 1.. of a shared payload, by its index record."""
        ref = self._requests[idx].ref
        parts = self._payloads.index_of(ref)
        first = self._found[idx][0]
        if len(parts) != first.num_segments or parts[0].digest != first.digest:
            self._payloads.drop_index(ref)
            raise BlockMissing(
                ref.component.kind, ref.index, "its index record is missing or differs"
            )
        self._get(_all_of(idx, parts)[1:])
        if idx in self._failures:
            self._payloads.drop_index(ref)
        self._finish_round()
        self._payloads._remember(ref, len(parts))

    def _check_digests(self) -> None:
        for idx, request in enumerate(self._requests):
            found = combine_digests([part.digest for part in self._found[idx]])
            if request.digest is not None and found != request.digest:
                ref = request.ref
                # The value fits its name, yet it is not the one that was handed over.
                key = ref.key(self._payloads._fingerprint, 0)
                self._bad.append((key, self._found[idx][0].header))
                self._failures[idx] = BlockCorrupt(
                    ref.component.kind, ref.index, "digest", "its digest is not the ticket's"
                )
        self._finish_round()

    def _finish_round(self) -> None:
        for key, header in self._bad:
            self._payloads.quarantine(key, header)
        if self._failures:
            raise self._failures[min(self._failures)]
