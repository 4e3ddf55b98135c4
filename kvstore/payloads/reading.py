"""Reads payloads: each segment is verified as it arrives, while later ones are on the wire.

Bytes that fail are quarantined (deleted if still the same) before the error is raised.

Invariant: nothing leaves `read` that was not verified against its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from kvstore.backends.base import Allocate
from kvstore.buffers import Buffer, flat_view, new_buffer
from kvstore.digests import RunningDigest, combine_digests
from kvstore.errors import BlockCorrupt, BlockMissing, KvStoreError
from kvstore.headers import HEADER_BYTES, HeaderError
from kvstore.keys import TAIL_COMPONENTS, Component, first_keys
from kvstore.payloads.payloads import Payloads
from kvstore.payloads.sealing import PayloadRef
from kvstore.records import SegmentDigest
from kvstore.verification import Expected, Verified, verify_segment


class ReadRequest(NamedTuple):
    """One payload to read.

    `digest` is what the ticket body says of a shared block, `segments` what it says of a tail;
    both None for a prefix read, which trusts name and header alone.
    """

    ref: PayloadRef
    digest: bytes | None = None
    segments: tuple[SegmentDigest, ...] | None = None


def read(
    payloads: Payloads, requests: Sequence[ReadRequest], allocate: Allocate = new_buffer
) -> list[memoryview]:
    """Verified payloads in the order of the requests.

    Args:
        payloads: Where from.
        requests: What to read.
        allocate: Memory for each payload, with 64 bytes in front for its header.

    Raises:
        BlockMissing: The first payload that is not there, or not completely.
        BlockCorrupt: The first payload that failed a check; its key was quarantined.
    """
    return [payload for payload, _ in read_with_digests(payloads, requests, allocate)]


def read_with_digests(
    payloads: Payloads, requests: Sequence[ReadRequest], allocate: Allocate = new_buffer
) -> list[tuple[memoryview, bytes]]:
    """As `read`, each payload with its digest."""
    return _Reading(payloads, requests, allocate).run()


class _Wanted(NamedTuple):
    """A segment to read: which request, which segment of it, and what is known of it."""

    idx: int
    number: int
    part: SegmentDigest | None
    num_segments: int | None = None


def _all_of(idx: int, parts: Sequence[SegmentDigest]) -> list[_Wanted]:
    return [_Wanted(idx, number, part, len(parts)) for number, part in enumerate(parts)]


class _Arena:
    """One buffer for a payload in segments, received without a copy.

    The header of each segment lands on the last bytes of the segment before it, which are put back
    once the header was read:

        | header 0 | segment 0      | segment 1      |
                          | header 1 |
    """

    def __init__(self, parts: Sequence[SegmentDigest], allocate: Allocate) -> None:
        self._starts = [0, *accumulate(part.num_bytes for part in parts)]
        size = HEADER_BYTES + self._starts[-1]
        self._view = flat_view(allocate(size))[:size]
        self._saved = b""

    def slot(self, number: int) -> memoryview:
        """Where the value of a segment goes; segments are received in order."""
        start, end = self._starts[number], self._starts[number + 1]
        self._saved = bytes(self._view[start : start + HEADER_BYTES]) if number else b""
        return self._view[start : end + HEADER_BYTES]

    def settle(self, number: int) -> None:
        """Puts back what the header of a segment covered."""
        if number:
            start = self._starts[number]
            self._view[start : start + HEADER_BYTES] = self._saved

    @property
    def payload(self) -> memoryview:
        """The whole payload, once every segment was settled."""
        return self._view[HEADER_BYTES:]


class _Reading:
    """One call of `read`: first values of all payloads, then what those ask for."""

    def __init__(
        self, payloads: Payloads, requests: Sequence[ReadRequest], allocate: Allocate
    ) -> None:
        self._payloads = payloads
        self._fingerprint = payloads.fingerprint
        self._requests = requests
        self._allocate = allocate
        self._found: list[list[Verified]] = [[] for _ in requests]
        self._arenas: dict[int, _Arena] = {}
        self._failures: dict[int, KvStoreError] = {}
        self._bad: list[tuple[bytes, bytes]] = []
        self._tally: dict[tuple[Component, str], list[int]] = {}

    def run(self) -> list[tuple[memoryview, bytes]]:
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
        digests = self._check_digests()
        results = [self._result(idx) for idx in range(len(self._requests))]
        self._payloads.counters.add(blocks_read=len(results), bytes_read=sum(map(len, results)))
        return list(zip(results, digests, strict=True))

    def _get(self, wanted: Sequence[_Wanted]) -> None:
        """Reads segments and verifies each as it arrives."""
        keys = self._keys(wanted)
        digest = RunningDigest()

        def place(idx: int, size: int) -> Buffer:
            item = wanted[idx]
            value = flat_view(
                self._allocate(size) if item.part is None else self._place(item, item.part, size)
            )
            digest.begin(value)
            return value

        def on_value(idx: int, value: memoryview | None) -> None:
            self._take(wanted[idx], keys[idx], value, digest)

        try:
            self._payloads.backend.get(keys, on_value, place, digest.advance)
        finally:
            self._report()

    def _keys(self, wanted: Sequence[_Wanted]) -> list[bytes]:
        refs = [self._requests[item.idx].ref for item in wanted]
        components = {ref.component for ref in refs}
        if len(components) == 1 and not any(item.number for item in wanted):
            component = components.pop()
            if component not in TAIL_COMPONENTS:
                return first_keys(self._fingerprint, component, [ref.name for ref in refs])
        return [
            ref.key(self._fingerprint, item.number) for ref, item in zip(refs, wanted, strict=True)
        ]

    def _place(self, wanted: _Wanted, part: SegmentDigest, size: int) -> Buffer:
        """Memory for a segment that is about to be received, of which the length is known."""
        parts = self._requests[wanted.idx].segments
        if parts is None or len(parts) == 1 or wanted.idx in self._failures:
            return self._allocate(size)
        if size != part.num_bytes + HEADER_BYTES:
            return new_buffer(size)  # not what the ticket says: it will fail its check
        if wanted.idx not in self._arenas:
            self._arenas[wanted.idx] = _Arena(parts, self._allocate)
        return self._arenas[wanted.idx].slot(wanted.number)

    def _take(
        self, wanted: _Wanted, key: bytes, value: memoryview | None, digest: RunningDigest
    ) -> None:
        idx, number, part, num_segments = wanted
        if idx in self._failures:
            return
        ref = self._requests[idx].ref
        if value is None:
            self._note(ref.component, "missing")
            self._failures[idx] = BlockMissing(ref.component.kind, ref.position)
            return
        expected = Expected(
            self._fingerprint,
            ref.name,
            ref.component,
            number,
            ref.attempt,
            num_segments,
            part.num_bytes if part else None,
            part.digest if part else None,
        )
        try:
            found = verify_segment(value, expected, digest.finish(value))
        except HeaderError as error:
            self._note(ref.component, "corrupt")
            self._failures[idx] = BlockCorrupt(
                ref.component.kind, ref.position, error.reason, str(error)
            )
            self._bad.append((key, bytes(value[:HEADER_BYTES])))
            return
        self._note(ref.component, "ok", len(found.payload))
        self._found[idx].append(found)
        if idx in self._arenas:
            self._arenas[idx].settle(number)

    def _note(self, component: Component, outcome: str, num_bytes: int = 0) -> None:
        if self._payloads.counters.observer is not None:
            row = self._tally.setdefault((component, outcome), [0, 0])
            row[0] += 1
            row[1] += num_bytes

    def _report(self) -> None:
        """Tells the observer once about all segments that ended alike."""
        observer, tally = self._payloads.counters.observer, self._tally
        self._tally = {}
        if observer is not None:
            for (component, outcome), (num_segments, num_bytes) in tally.items():
                observer.read(component.kind, outcome, num_segments, num_bytes)

    def _read_rest(self, idx: int) -> None:
        """Segments 1.. of a shared payload, by its index record."""
        ref = self._requests[idx].ref
        parts = self._payloads.index_of(ref)
        first = self._found[idx][0]
        if len(parts) != first.num_segments or parts[0].digest != first.digest:
            self._payloads.drop_index(ref)
            raise BlockMissing(
                ref.component.kind, ref.position, "its index record is missing or differs"
            )
        self._get(_all_of(idx, parts)[1:])
        if idx in self._failures:
            self._payloads.drop_index(ref)
        self._finish_round()
        self._payloads.remember(ref, len(parts))

    def _check_digests(self) -> list[bytes]:
        digests = [combine_digests([part.digest for part in parts]) for parts in self._found]
        for idx, request in enumerate(self._requests):
            if request.digest not in (None, digests[idx]):
                ref = request.ref
                # The value fits its name, yet it is not the one that was handed over.
                key = ref.key(self._fingerprint, 0)
                self._bad.append((key, self._found[idx][0].header))
                self._failures[idx] = BlockCorrupt(
                    ref.component.kind, ref.position, "digest", "its digest is not the ticket's"
                )
        self._finish_round()
        return digests

    def _result(self, idx: int) -> memoryview:
        if idx in self._arenas:
            return self._arenas[idx].payload
        parts = self._found[idx]
        if len(parts) == 1:
            return parts[0].payload
        return memoryview(b"".join([part.payload for part in parts]))

    def _finish_round(self) -> None:
        for key, header in self._bad:
            self._payloads.quarantine(key, header)
        if self._failures:
            raise self._failures[min(self._failures)]
