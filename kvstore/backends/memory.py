"""The store inside the process: for tests, simulation and a single process.

Cells are dictionaries under one lock, on the clock it was given. Values are copied in; readers get
copies out, so nothing aliases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from kvstore.backends.base import BackendStatistics, Facts, OnBytes, OnValue, Place, PutItem
from kvstore.backends.steps import Lease, StepBackend
from kvstore.buffers import flat_view
from kvstore.errors import StoreFull
from kvstore.headers import HEADER_BYTES


@dataclass(slots=True)
class _Value:
    data: bytearray
    expires_ms: int


class MemoryBackend(StepBackend):
    """All ports over dictionaries.

    Args:
        clock: Monotonic seconds.
        max_bytes: Payload bytes before `StoreFull`; 0 is no limit. Nothing is evicted.
    """

    def __init__(self, clock: Callable[[], float], *, max_bytes: int = 0) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._values: dict[bytes, _Value] = {}
        self._leases: dict[bytes, Lease] = {}
        self._last_fence = 0

    # BlockStore

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        """See `BlockStore`."""
        with self._lock:
            expires_ms = self._now_ms() + extend_ms if extend_ms else 0
            return [self._lengthen(key, expires_ms) for key in keys]

    def put(self, items: Iterable[PutItem]) -> list[bytes | None]:
        """See `BlockStore`."""
        with self._lock:
            return [self._put_one(item) for item in items]

    def get(
        self,
        keys: Sequence[bytes],
        on_value: OnValue,
        place: Place | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """See `BlockStore`."""
        for idx, key in enumerate(keys):
            with self._lock:
                data = self._peek(key)
            if data is None:
                on_value(idx, None)
                continue
            memory = place(idx, len(data)) if place else bytearray(len(data))
            view = flat_view(memory)[: len(data)]
            if data:
                view[:] = data
            if on_bytes is not None:
                on_bytes(len(data))
            on_value(idx, view)

    def statistics(self) -> BackendStatistics:
        """See `BlockStore`."""
        with self._lock:
            return BackendStatistics(
                address="memory",
                used_bytes=self._used_bytes(),
                max_bytes=self._max_bytes,
                num_keys=len(self._values) + len(self._leases),
            )

    def close(self) -> None:
        """Keeps the data: several stores may share one backend."""

    # KeyStore

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """See `KeyStore`."""
        values, leases = self._live_keys()
        yield from (key for key in (*values, *leases) if key.startswith(prefix))

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """See `KeyStore`."""
        with self._lock:
            found = [self._live(key) for key in keys]
            return [len(value.data) if value else 0 for value in found]

    def delete(self, keys: Sequence[bytes]) -> int:
        """See `KeyStore`."""
        with self._lock:
            return sum(self._drop(key) or self._drop_lease(key) for key in keys)

    def facts(self) -> list[Facts]:
        """See `KeyStore`: there is no server."""
        return []

    # Cells; the lock is held.

    def _locked(self, _key: bytes) -> AbstractContextManager[object]:
        return self._lock

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _peek(self, key: bytes) -> bytes | None:
        value = self._live(key)
        return None if value is None else bytes(value.data)

    def _write(self, key: bytes, data: bytes, expires_ms: int) -> None:
        if self._max_bytes and self._used_bytes() + len(data) > self._max_bytes:
            raise StoreFull("memory", f"{self._max_bytes} bytes are in use")
        self._values[key] = _Value(bytearray(data), expires_ms)

    def _lengthen(self, key: bytes, expires_ms: int) -> bool:
        value = self._live(key)
        if value is not None:
            value.expires_ms = max(value.expires_ms, expires_ms)
        return value is not None

    def _life_ms(self, key: bytes) -> int:
        value = self._live(key)
        return 0 if value is None else value.expires_ms - self._now_ms()

    def _drop(self, key: bytes) -> bool:
        return self._values.pop(key, None) is not None

    def _lease(self, key: bytes) -> Lease | None:
        lease = self._leases.get(key)
        if lease is not None and lease.expires_ms <= self._now_ms():
            del self._leases[key]
            return None
        return lease and replace(lease)

    def _save_lease(self, key: bytes, lease: Lease) -> None:
        self._leases[key] = replace(lease)
        self._last_fence = max(self._last_fence, lease.fencing_token)

    def _drop_lease(self, key: bytes) -> bool:
        return self._leases.pop(key, None) is not None

    def _first_fence(self) -> int:
        # As in `commit.lua`: above all tokens of earlier lives. The clock may stand still here.
        self._last_fence = max(self._last_fence + 1, int(self._clock() * 1e6))
        return self._last_fence

    def _live_keys(self) -> tuple[list[bytes], list[bytes]]:
        with self._lock:
            values = [key for key in list(self._values) if self._live(key)]
            leases = [key for key in list(self._leases) if self._lease(key)]
            return values, leases

    def _live(self, key: bytes) -> _Value | None:
        value = self._values.get(key)
        if value is not None and value.expires_ms <= self._now_ms():
            del self._values[key]
            return None
        return value

    def _put_one(self, item: PutItem) -> bytes | None:
        stored = self._live(item.key)
        if stored is not None:
            return bytes(stored.data[:HEADER_BYTES])
        data = b"".join((item.header, flat_view(item.payload), item.trailer))
        self._write(item.key, data, self._now_ms() + item.ttl_ms)
        return None

    def _used_bytes(self) -> int:
        return sum(len(value.data) for value in self._values.values())
