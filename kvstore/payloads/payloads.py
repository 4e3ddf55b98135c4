"""Writes payloads and keeps their records: what stands between opaque bytes and keys.

A shared payload in several segments also gets an index record, written after its segments, and
exists only if the record and every segment verify. Segments of a tail are listed in the ticket body
instead.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from kvstore.backends.base import BlockStore, PutItem
from kvstore.buffers import Buffer
from kvstore.config import KvStoreConfig
from kvstore.errors import BlockCorrupt, BlockMissing
from kvstore.headers import HEADER_BYTES
from kvstore.keys import TAIL_COMPONENTS, Component, first_keys, index_key
from kvstore.payloads.sealing import PayloadRef, SealedPayload, rename, seal
from kvstore.records import SegmentDigest, decode_index, encode_index, open_record, seal_record
from kvstore.statistics import Counters

logger = logging.getLogger(__name__)

_MAX_REMEMBERED = 1 << 16
_MAX_INDEX_TRIES = 8


class Payloads:
    """Reads and writes payloads of one layout in one backend. Thread-safe."""

    def __init__(
        self, backend: BlockStore, config: KvStoreConfig, fingerprint: bytes, counters: Counters
    ) -> None:
        self.backend = backend
        self._config = config
        self.fingerprint = fingerprint
        self.counters = counters
        self._lock = threading.Lock()
        # Segment counts of shared payloads with more than one, so that lives are extended whole.
        self._num_segments: OrderedDict[tuple[Component, bytes], int] = OrderedDict()

    def seal(self, ref: PayloadRef, payload: Buffer) -> SealedPayload:
        """Splits a payload and computes digests and headers. No I/O."""
        return seal(
            ref,
            payload,
            fingerprint=self.fingerprint,
            segment_bytes=self._config.segment_bytes,
        )

    def rename(self, sealed: SealedPayload, ref: PayloadRef) -> SealedPayload:
        """The same payload under another name, without hashing it again."""
        return rename(sealed, ref, fingerprint=self.fingerprint)

    def write(
        self, payloads: Iterable[SealedPayload], ttl_ms: int, *, attempt: int = 0
    ) -> list[SealedPayload]:
        """Writes payloads whose names are free; equal ones are kept and live as long as new ones.

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

        same = self._judge(writes, self.backend.put(produce()))
        if same:
            self.extend(same, ttl_ms)
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
            keys += (ref.key(self.fingerprint, number) for number in range(count))
            if count > 1:
                keys.append(index_key(self.fingerprint, ref.name))
            spans.append(slice(start, len(keys)))
        present = self.backend.lookup(keys, extend_ms=ttl_ms)
        return [all(present[span]) for span in spans]

    def exist(self, component: Component, names: Sequence[bytes]) -> list[bool]:
        """Which payloads seem to be there (their first segment is). Advisory."""
        return self.backend.lookup(first_keys(self.fingerprint, component, names))

    def _items(self, sealed: SealedPayload, ttl_ms: int) -> Iterator[PutItem]:
        """What to write for a payload. Segments without an index yet are uncommitted."""
        discard_ms = min(ttl_ms, int(self._config.discard_after_s * 1000))
        for number, segment in enumerate(sealed.segments):
            yield PutItem(
                sealed.ref.key(self.fingerprint, number),
                sealed.headers[number],
                segment,
                ttl_ms if len(sealed.segments) == 1 else discard_ms,
            )

    def _judge(
        self, writes: Sequence[tuple[SealedPayload, PutItem]], found: list[bytes | None]
    ) -> list[PayloadRef]:
        """Counts what was written; the payloads that were there already, with the same bytes."""
        vanished = [idx for idx, head in enumerate(found) if head == b""]
        if vanished:
            # Evicted between our write and our look: write again, and take what comes.
            again = self.backend.put([writes[idx][1] for idx in vanished])
            for idx, head in zip(vanished, again, strict=True):
                found[idx] = head
        num_written = num_bytes = 0
        tally: Counter[tuple[str, str]] = Counter()
        sizes: Counter[tuple[str, str]] = Counter()
        same: list[PayloadRef] = []
        conflict: BlockCorrupt | None = None
        for (sealed, item), head in zip(writes, found, strict=True):
            outcome = "new" if head is None else "present" if head == item.header else "conflict"
            kind = sealed.ref.component.kind, outcome
            tally[kind] += 1
            sizes[kind] += len(item.payload)
            if head is None:
                num_written += 1
                num_bytes += len(item.payload)
            elif head == item.header:
                same.append(sealed.ref)
            else:
                self.quarantine(item.key, head)
                conflict = conflict or BlockCorrupt(
                    sealed.ref.component.kind,
                    sealed.ref.position,
                    "conflict",
                    "other bytes are stored under its name",
                )
        self.counters.add(
            blocks_written=num_written, bytes_written=num_bytes, blocks_deduplicated=len(same)
        )
        if (observer := self.counters.observer) is not None:
            for (component, outcome), number in tally.items():
                observer.written(component, outcome, number, sizes[component, outcome])
        if conflict is not None:
            raise conflict
        return same

    def quarantine(self, key: bytes, header: Buffer) -> None:
        """Deletes a value that failed a check, unless it changed meanwhile."""
        if self.backend.quarantine(key, bytes(header[:HEADER_BYTES])):
            self.counters.add(quarantined=1)
            logger.warning("quarantined %s", key.decode("ascii", "replace"))

    # Index records

    def _publish_index(self, sealed: SealedPayload, ttl_ms: int, attempt: int) -> None:
        ref = sealed.ref
        key = index_key(self.fingerprint, ref.name)
        keys = [ref.key(self.fingerprint, number) for number in range(len(sealed.segments))]
        for _ in range(_MAX_INDEX_TRIES):
            stored = self.fetch_raw(key)
            components = self._open_index(ref, key, stored) if stored else {}
            components[int(ref.component)] = sealed.segment_digests()
            record = seal_record(
                encode_index(components, self._config.owner, attempt),
                fingerprint=self.fingerprint,
                name=ref.name,
            )
            if self.backend.put_index(key, keys, stored, record, ttl_ms):
                self.remember(ref, len(keys))
                return
            # The record changed meanwhile; or segments went, evicted or by a reader that found
            # them without their record. Those that are there are kept.
            self.backend.put(self._items(sealed, ttl_ms))
        raise BlockMissing(ref.component.kind, ref.position, "its segments vanish before its index")

    def fetch_raw(self, key: bytes) -> bytes:
        """A value as stored, unverified; empty if there is none."""
        values: list[bytes] = []
        self.backend.get([key], lambda _idx, view: values.append(bytes(view or b"")))
        return values[0]

    def _open_index(
        self, ref: PayloadRef, key: bytes, stored: bytes
    ) -> dict[int, tuple[SegmentDigest, ...]]:
        try:
            payload = open_record(
                stored, fingerprint=self.fingerprint, name=ref.name, kind=ref.component.kind
            )
            return decode_index(payload)
        except BlockCorrupt:
            self.quarantine(key, stored)
            return {}

    def index_of(self, ref: PayloadRef) -> tuple[SegmentDigest, ...]:
        """Segments of a shared payload as its index record lists them; empty if there is none."""
        key = index_key(self.fingerprint, ref.name)
        stored = self.fetch_raw(key)
        return self._open_index(ref, key, stored).get(int(ref.component), ()) if stored else ()

    def drop_index(self, ref: PayloadRef) -> None:
        """Deletes record and first segment of an incomplete payload: look-ups then miss it."""
        for key in (index_key(self.fingerprint, ref.name), ref.key(self.fingerprint, 0)):
            self.backend.quarantine(key, b"")

    def remember(self, ref: PayloadRef, num_segments: int) -> None:
        """Notes how many segments a shared payload has, so that `extend` covers all of them."""
        with self._lock:
            self._num_segments[ref.component, ref.name] = num_segments
            self._num_segments.move_to_end((ref.component, ref.name))
            if len(self._num_segments) > _MAX_REMEMBERED:
                self._num_segments.popitem(last=False)

    def _known_segments(self, ref: PayloadRef) -> int:
        with self._lock:
            return self._num_segments.get((ref.component, ref.name), 1)
