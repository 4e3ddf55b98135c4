"""The store inside the process: for tests, simulation and a single process.

Does what the scripts of the Redis backend do, under one lock, on the clock it was given. Values are
copied in; readers get copies out, so nothing aliases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvstore.backends.base import (
    Allocate,
    BackendStatistics,
    HandoffKeys,
    LeaseEntry,
    LeaseGrant,
    LeaseOutcome,
    LeaseReply,
    OnBytes,
    OnValue,
    PutItem,
)
from kvstore.errors import StoreFull
from kvstore.keys import HEADER_BYTES, flat_view, handoff_id_of_key


@dataclass(slots=True)
class _Value:
    data: bytearray
    expires_ms: int


@dataclass(slots=True)
class _Lease:
    owner: str
    state: str
    request_id: str
    attempt: int
    fencing_token: int
    num_bytes: int
    created_ms: int
    deadline_ms: int
    expires_ms: int


class MemoryBackend:
    """Both ports over dictionaries.

    Args:
        clock: Monotonic seconds.
        max_bytes: Payload bytes before `StoreFull`; 0 is no limit. Nothing is evicted.
    """

    def __init__(self, clock: Callable[[], float], *, max_bytes: int = 0) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._values: dict[bytes, _Value] = {}
        self._leases: dict[bytes, _Lease] = {}
        self._last_fence = 0

    # BlockStore

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        """See `BlockStore`."""
        with self._lock:
            now_ms = self._now_ms()
            found = [self._live(key, now_ms) for key in keys]
            for value in found:
                if value is not None and extend_ms:
                    value.expires_ms = max(value.expires_ms, now_ms + extend_ms)
            return [value is not None for value in found]

    def put(self, items: Iterable[PutItem]) -> list[bytes | None]:
        """See `BlockStore`."""
        with self._lock:
            return [self._put_one(item) for item in items]

    def put_index(
        self, key: bytes, segments: Sequence[bytes], expected: bytes, value: bytes, ttl_ms: int
    ) -> bool:
        """See `BlockStore`."""
        with self._lock:
            now_ms = self._now_ms()
            parts = [self._live(segment, now_ms) for segment in segments]
            stored = self._live(key, now_ms)
            found = bytes(stored.data) if stored else b""
            if None in parts or found not in (expected, value):
                return False
            self._write(key, value, now_ms + ttl_ms)
            for part in parts:
                assert part is not None
                part.expires_ms = max(part.expires_ms, now_ms + ttl_ms)
            return True

    def get(
        self,
        keys: Sequence[bytes],
        on_value: OnValue,
        allocate: Allocate,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """See `BlockStore`."""
        for idx, key in enumerate(keys):
            with self._lock:
                value = self._live(key, self._now_ms())
                data = bytes(value.data) if value else None
            if data is None:
                on_value(idx, None)
                continue
            view = flat_view(allocate(len(data)))[: len(data)]
            if data:
                view[:] = data
            if on_bytes is not None:
                on_bytes(len(data))
            on_value(idx, view)

    def quarantine(self, key: bytes, header: bytes) -> bool:
        """See `BlockStore`."""
        with self._lock:
            value = self._live(key, self._now_ms())
            if value is None or not value.data.startswith(header):
                return False
            del self._values[key]
            return True

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

    # LeaseStore

    def fence(self, key: bytes, attempt: int, ttl_ms: int) -> int:
        """See `LeaseStore`."""
        with self._lock:
            now_ms = self._now_ms()
            value = self._live(key, now_ms)
            known = int(value.data) if value and value.data.isdigit() else 0
            if attempt > known:
                self._write(key, str(attempt).encode(), now_ms + ttl_ms)
            return max(known, attempt)

    def commit(self, keys: HandoffKeys, body: bytes, grant: LeaseGrant) -> LeaseReply:
        """See `LeaseStore`."""
        with self._lock:
            now_ms = self._now_ms()
            tails = [self._live(key, now_ms) for key in keys.tails]
            if None in tails:
                return LeaseReply(outcome=LeaseOutcome.INCOMPLETE, part_idx=tails.index(None))
            stored = self._live(keys.body, now_ms)
            if stored and bytes(stored.data) != body:
                return LeaseReply(outcome=LeaseOutcome.CONFLICT)
            lease = self._lease(keys.lease, now_ms)
            if not stored or not lease:
                self._write(keys.body, body, now_ms + grant.ttl_ms)
                lease = self._leases[keys.lease] = _Lease(
                    owner=grant.owner,
                    state="committed",
                    request_id=grant.request_id,
                    attempt=grant.attempt,
                    fencing_token=self._first_fence(),
                    num_bytes=grant.num_bytes,
                    created_ms=now_ms,
                    deadline_ms=now_ms + grant.lease_ms,
                    expires_ms=now_ms + grant.ttl_ms,
                )
                for tail in tails:
                    assert tail is not None
                    tail.expires_ms = now_ms + grant.ttl_ms
            elif lease.deadline_ms <= now_ms:
                # Nobody came in time; who commits again waits again.
                lease.owner, lease.state = grant.owner, "committed"
                lease.deadline_ms = now_ms + grant.lease_ms
            return self._granted(lease, now_ms)

    def acquire(self, keys: HandoffKeys, grant: LeaseGrant, fencing_token: int) -> LeaseReply:
        """See `LeaseStore`."""
        with self._lock:
            now_ms = self._now_ms()
            body, lease = self._live(keys.body, now_ms), self._lease(keys.lease, now_ms)
            if not body or not lease:
                return LeaseReply(outcome=LeaseOutcome.GONE)
            if lease.attempt != grant.attempt or lease.fencing_token < fencing_token:
                return LeaseReply(outcome=LeaseOutcome.TAKEN)
            lease.fencing_token += 1
            self._last_fence = max(self._last_fence, lease.fencing_token)
            lease.owner, lease.state = grant.owner, "held"
            lease.deadline_ms = now_ms + grant.lease_ms
            lease.expires_ms = max(lease.expires_ms, now_ms + grant.ttl_ms)
            body.expires_ms = max(body.expires_ms, now_ms + grant.ttl_ms)
            return self._granted(lease, now_ms)

    def renew(self, keys: HandoffKeys, fencing_token: int, lease_ms: int) -> LeaseReply:
        """See `LeaseStore`."""
        with self._lock:
            now_ms = self._now_ms()
            body, lease = self._live(keys.body, now_ms), self._lease(keys.lease, now_ms)
            if not body or not lease:
                return LeaseReply(outcome=LeaseOutcome.GONE)
            if lease.fencing_token != fencing_token:
                return LeaseReply(outcome=LeaseOutcome.TAKEN)
            if now_ms > lease.deadline_ms:
                return LeaseReply(outcome=LeaseOutcome.LAPSED)
            lease.deadline_ms = now_ms + lease_ms
            return self._granted(lease, now_ms)

    def release(self, keys: HandoffKeys, fencing_token: int | None) -> LeaseReply:
        """See `LeaseStore`."""
        with self._lock:
            if fencing_token is None:
                deleted = self._delete(keys)
                return LeaseReply(outcome=LeaseOutcome.GRANTED if deleted else LeaseOutcome.GONE)
            lease = self._lease(keys.lease, self._now_ms())
            if not lease:
                return LeaseReply(outcome=LeaseOutcome.GONE)
            if lease.fencing_token != fencing_token:
                return LeaseReply(outcome=LeaseOutcome.TAKEN)
            self._delete(keys)
            return LeaseReply(outcome=LeaseOutcome.GRANTED)

    def expire(self, keys: HandoffKeys) -> bool:
        """See `LeaseStore`."""
        with self._lock:
            now_ms = self._now_ms()
            lease = self._lease(keys.lease, now_ms)
            if lease and now_ms <= lease.deadline_ms:
                return False
            if not lease and not self._live(keys.body, now_ms):
                return False
            return self._delete(keys)

    def audit(self) -> list[LeaseEntry]:
        """See `LeaseStore`."""
        with self._lock:
            now_ms = self._now_ms()
            keys = [key for key in list(self._values) if self._live(key, now_ms)]
            bodies = {handoff_id_of_key(key) for key in keys if key.startswith(b"dkv1:h:")}
            tails: dict[str, list[bytes]] = {}
            for key in keys:
                if b":t:{" in key:
                    tails.setdefault(handoff_id_of_key(key), []).append(key)
            leases = {
                handoff_id_of_key(key): lease
                for key in list(self._leases)
                if (lease := self._lease(key, now_ms))
            }
            return [
                _entry(name, leases.get(name), name in bodies, tails.get(name, []), now_ms)
                for name in sorted(bodies | set(tails) | set(leases))
            ]

    # Helpers; the lock is held.

    # KeyStore

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """See `KeyStore`."""
        with self._lock:
            now_ms = self._now_ms()
            names = [name for name in list(self._values) if self._live(name, now_ms)]
            names += [name for name in list(self._leases) if self._lease(name, now_ms)]
        yield from (name for name in names if name.startswith(prefix))

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """See `KeyStore`."""
        with self._lock:
            now_ms = self._now_ms()
            found = [self._live(key, now_ms) for key in keys]
            return [len(value.data) if value else 0 for value in found]

    def delete(self, keys: Sequence[bytes]) -> int:
        """See `KeyStore`."""
        with self._lock:
            found = [self._values.pop(key, None) or self._leases.pop(key, None) for key in keys]
            return sum(value is not None for value in found)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _live(self, key: bytes, now_ms: int) -> _Value | None:
        value = self._values.get(key)
        if value is not None and value.expires_ms <= now_ms:
            del self._values[key]
            return None
        return value

    def _lease(self, key: bytes, now_ms: int) -> _Lease | None:
        lease = self._leases.get(key)
        if lease is not None and lease.expires_ms <= now_ms:
            del self._leases[key]
            return None
        return lease

    def _first_fence(self) -> int:
        # As in `commit.lua`: above all tokens of earlier lives. The clock may stand still here.
        self._last_fence = max(self._last_fence + 1, int(self._clock() * 1e6))
        return self._last_fence

    def _put_one(self, item: PutItem) -> bytes | None:
        now_ms = self._now_ms()
        stored = self._live(item.key, now_ms)
        if stored is not None:
            return bytes(stored.data[:HEADER_BYTES])
        self._write(item.key, item.header + bytes(item.payload), now_ms + item.ttl_ms)
        return None

    def _write(self, key: bytes, data: bytes, expires_ms: int) -> None:
        if self._max_bytes and self._used_bytes() + len(data) > self._max_bytes:
            raise StoreFull("memory", f"{self._max_bytes} bytes are in use")
        self._values[key] = _Value(bytearray(data), expires_ms)

    def _used_bytes(self) -> int:
        return sum(len(value.data) for value in self._values.values())

    def _granted(self, lease: _Lease, now_ms: int) -> LeaseReply:
        return LeaseReply(
            outcome=LeaseOutcome.GRANTED,
            fencing_token=lease.fencing_token,
            remaining_ms=max(0, lease.deadline_ms - now_ms),
        )

    def _delete(self, keys: HandoffKeys) -> bool:
        found = [self._values.pop(key, None) for key in (keys.body, *keys.tails)]
        lease = self._leases.pop(keys.lease, None)
        return lease is not None or any(value is not None for value in found)


def _entry(
    handoff_id: str, lease: _Lease | None, has_body: bool, tails: list[bytes], now_ms: int
) -> LeaseEntry:
    if lease is None:
        return LeaseEntry(
            handoff_id=handoff_id, has_lease=False, has_body=has_body, tails=tuple(sorted(tails))
        )
    return LeaseEntry(
        handoff_id=handoff_id,
        has_lease=True,
        has_body=has_body,
        tails=tuple(sorted(tails)),
        owner=lease.owner,
        state=lease.state,
        request_id=lease.request_id,
        attempt=lease.attempt,
        fencing_token=lease.fencing_token,
        num_bytes=lease.num_bytes,
        age_ms=now_ms - lease.created_ms,
        remaining_ms=lease.deadline_ms - now_ms,
    )
