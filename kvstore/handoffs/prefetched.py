"""Blocks that a reader fetched before their hand-off was committed.

Verified against their names when they were read, and against the digests of the ticket when they
are taken, so prefetching changes when bytes travel and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Prefetched:
    """Blocks of one sequence by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[bytes, tuple[memoryview, bytes]] = {}

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
        return payload if found == digest else None

    @property
    def num_bytes(self) -> int:
        """Payload bytes kept."""
        with self._lock:
            return sum(len(payload) for payload, _ in self._blocks.values())
