"""The latest batches by number, for those who missed some. Thread-safe."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DEFAULT_CAPACITY = 10_000


class Gap(LookupError):
    """What is asked for is no longer kept; `first` is the oldest number that is."""

    def __init__(self, wanted: int, first: int) -> None:
        super().__init__(f"batch {wanted} is no longer kept, the oldest one is {first}")
        self.first = first


class Ring:
    """Numbers batches from 0 and keeps the last ones.

    Args:
        capacity: Batches kept.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._batches: deque[bytes] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._next = 0
        self._watchers: list[Callable[[], None]] = []

    @property
    def next_number(self) -> int:
        """Number of the next batch."""
        with self._lock:
            return self._next

    def append(self, batch: bytes) -> int:
        """Keeps a batch; its number."""
        with self._lock:
            self._batches.append(batch)
            self._next += 1
            number, watchers = self._next - 1, tuple(self._watchers)
        for tell in watchers:
            tell()
        return number

    @contextmanager
    def watched(self, tell: Callable[[], None]) -> Iterator[None]:
        """Calls `tell` after each batch, on the thread that brought it, while the body runs."""
        with self._lock:
            self._watchers.append(tell)
        try:
            yield
        finally:
            with self._lock:
                self._watchers.remove(tell)

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """All batches from a number on.

        Raises:
            Gap: Older ones are gone.
        """
        with self._lock:
            first = self._next - len(self._batches)
            if number < first:
                raise Gap(number, first)
            start = number - first
            return [(number + idx, batch) for idx, batch in enumerate(list(self._batches)[start:])]

    def kept_since(self, number: int) -> list[tuple[int, bytes]]:
        """As `since`, from the oldest one on if earlier ones are gone."""
        try:
            return self.since(number)
        except Gap as gap:
            return self.since(gap.first)
