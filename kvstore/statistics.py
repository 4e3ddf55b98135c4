"""Counters of one store client: what it moved, and every failure by its cause.

Thread-safe; a snapshot is a frozen object. Labels hold no ids.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from kvstore.errors import KvStoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """Counts since the client was opened.

    Attributes:
        blocks_written: Payloads that were new to the store.
        blocks_deduplicated: Payloads that were there already, with the same digest.
        bytes_written: Payload bytes of `blocks_written`.
        blocks_read: Payloads read and verified.
        bytes_read: Payload bytes of `blocks_read`.
        lookups: Calls of `lookup`.
        commits: Hand-offs committed.
        opened: Hand-offs whose lease was acquired.
        fetched: Hand-offs read and verified completely.
        released: Hand-offs released by their reader.
        aborted: Hand-offs deleted before they were released.
        expired: Hand-offs reaped by this client's janitor.
        quarantined: Keys deleted because their bytes were wrong.
        failures: Raised errors by cause.
    """

    blocks_written: int = 0
    blocks_deduplicated: int = 0
    bytes_written: int = 0
    blocks_read: int = 0
    bytes_read: int = 0
    lookups: int = 0
    commits: int = 0
    opened: int = 0
    fetched: int = 0
    released: int = 0
    aborted: int = 0
    expired: int = 0
    quarantined: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


class Observer(Protocol):
    """Told what a client does, on the thread that did it; must not block."""

    def operation(self, op: str, seconds: float) -> None:
        """An operation ended: lookup, reserve, write, commit, read, lease or abort."""
        ...

    def written(self, component: str, outcome: str, num_segments: int, num_bytes: int) -> None:
        """Segments were written: new, present or conflict."""
        ...

    def read(self, component: str, outcome: str, num_segments: int, num_bytes: int) -> None:
        """Segments were read: ok, missing or corrupt."""
        ...


def _no_time() -> float:
    return 0.0


class Counters:
    """Mutable side of `StoreStatistics`, and the way to an observer.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = _no_time) -> None:
        self.clock = clock
        self.observer: Observer | None = None
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Adds to counters by the field names of `StoreStatistics`."""
        with self._lock:
            self._counts.update(counts)

    def failed(self, error: KvStoreError) -> None:
        """Counts a failure under its cause."""
        with self._lock:
            self._failures[error.cause] += 1

    def snapshot(self) -> StoreStatistics:
        """The counts now."""
        with self._lock:
            return StoreStatistics(
                **self._counts, failures=MappingProxyType(dict(sorted(self._failures.items())))
            )


@contextmanager
def counted(counters: Counters, op: str = "") -> Iterator[None]:
    """Counts a library error that passes through, under its cause; `op` is observed."""
    began = counters.clock()
    try:
        yield
    except KvStoreError as error:
        counters.failed(error)
        raise
    finally:
        if op and counters.observer is not None:
            counters.observer.operation(op, counters.clock() - began)
