"""Blocks that a reader fetched before their hand-off was committed.

Verified against their names when they were read, and against the digests of the ticket when they
are taken, so prefetching changes when bytes travel and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Prefetched:
    """Blocks of one sequence by name. Thread-safe.

    Attributes:
        num_taken: Blocks that were what the ticket says.
        taken_bytes: Payload bytes of them.
        num_refused: Blocks that were not; their reader reads them again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[bytes, tuple[memoryview, bytes]] = {}
        self.num_taken = 0
        self.taken_bytes = 0
        self.num_refused = 0

    def __len__(self) -> int:
        with self._lock:
            return len(self._blocks)

    def add(self, names: Iterable[bytes], found: Iterable[tuple[memoryview, bytes]]) -> None:
        """Keeps payloads with their digests."""
        with self._lock:
            self._blocks.update(zip(names, found, strict=True))

    def missing(self, names: Iterable[bytes]) -> list[bytes]:
        """The names nothing is kept for, in their order."""
        with self._lock:
            return [name for name in names if name not in self._blocks]

    def take(self, name: bytes, digest: bytes) -> memoryview | None:
        """The payload under a name if it has this digest; it is not kept any longer."""
        with self._lock:
            payload, found = self._blocks.pop(name, (None, b""))
            if payload is None:
                return None
            if found != digest:
                self.num_refused += 1
                return None
            self.num_taken += 1
            self.taken_bytes += len(payload)
        return payload

    def clear(self) -> int:
        """Drops what is kept; how many blocks."""
        with self._lock:
            num_blocks = len(self._blocks)
            self._blocks.clear()
        return num_blocks

    @property
    def num_bytes(self) -> int:
        """Payload bytes kept."""
        with self._lock:
            return sum(len(payload) for payload, _ in self._blocks.values())
