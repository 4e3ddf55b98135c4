"""The atomic steps of the scripts, for backends that have no scripts: over cells and a lock.

Every step here does what the script of the same name in `kvstore/scripts` does. A backend brings
the cells (values and leases that end with their life) and a lock over the keys of one hand-off or
one block; the contract suite holds all of them to the same answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kvstore.backends.base import (
    HandoffKeys,
    LeaseEntry,
    LeaseGrant,
    LeaseOutcome,
    LeaseReply,
    leaseless,
)
from kvstore.config import MAX_PENDING_MS
from kvstore.keys import body_key, handoff_id_of_key, lease_key
from kvstore.records import open_attempt, seal_attempt


@dataclass(slots=True)
class Lease:
    """A stored lease; times in milliseconds of the backend's clock."""

    owner: str
    state: str
    request_id: str
    attempt: int
    fencing_token: int
    num_bytes: int
    created_ms: int
    deadline_ms: int
    expires_ms: int


class StepBackend(ABC):
    """Index records, quarantine and leases; subclasses add cells, puts and gets."""

    # Cells

    @abstractmethod
    def _locked(self, key: bytes, /) -> AbstractContextManager[object]:
        """Keeps others from the keys that share the name in this one's braces. Never nested."""

    @abstractmethod
    def _now_ms(self) -> int:
        """The backend's clock, the same for all its clients."""

    @abstractmethod
    def _peek(self, key: bytes) -> bytes | None:
        """A value whose life has not ended."""

    @abstractmethod
    def _write(self, key: bytes, data: bytes, expires_ms: int) -> None:
        """Writes or replaces a value. Raises StoreFull."""

    @abstractmethod
    def _lengthen(self, key: bytes, expires_ms: int) -> bool:
        """Makes a value live until then at least; False if there is none."""

    @abstractmethod
    def _life_ms(self, key: bytes) -> int:
        """Until when a value lives, from now; 0 if there is none."""

    @abstractmethod
    def _drop(self, key: bytes) -> bool:
        """Deletes a value; False if there was none."""

    @abstractmethod
    def _lease(self, key: bytes) -> Lease | None:
        """A lease whose life has not ended."""

    @abstractmethod
    def _save_lease(self, key: bytes, lease: Lease) -> None:
        """Writes or replaces a lease."""

    @abstractmethod
    def _drop_lease(self, key: bytes) -> bool:
        """Deletes a lease; False if there was none."""

    @abstractmethod
    def _first_fence(self) -> int:
        """A fencing token above all tokens given before."""

    @abstractmethod
    def _live_keys(self) -> tuple[list[bytes], list[bytes]]:
        """Keys of values and keys of leases."""

    # BlockStore

    def put_index(
        self, key: bytes, segments: Sequence[bytes], expected: bytes, value: bytes, ttl_ms: int
    ) -> bool:
        """See `BlockStore`."""
        with self._locked(key):
            expires_ms = self._now_ms() + ttl_ms
            if (self._peek(key) or b"") not in (expected, value):
                return False
            if not all(self._lengthen(segment, 0) for segment in segments):
                return False
            self._write(key, value, expires_ms)
            for segment in segments:
                self._lengthen(segment, expires_ms)
            return True

    def quarantine(self, key: bytes, header: bytes) -> bool:
        """See `BlockStore`."""
        with self._locked(key):
            value = self._peek(key)
            return value is not None and value.startswith(header) and self._drop(key)

    # LeaseStore

    def fence(self, key: bytes, attempt: int, ttl_ms: int) -> int | None:
        """See `LeaseStore`."""
        with self._locked(key):
            value = self._peek(key)
            known = 0 if value is None else open_attempt(key, value)
            if known is None:
                if attempt:
                    self._write(key, seal_attempt(key, attempt + 1), self._now_ms() + ttl_ms)
                return None
            if attempt > known:
                self._write(key, seal_attempt(key, attempt), self._now_ms() + ttl_ms)
            elif attempt:
                self._lengthen(key, self._now_ms() + ttl_ms)
            return max(known, attempt)

    def commit(self, keys: HandoffKeys, body: bytes, grant: LeaseGrant) -> LeaseReply:
        """See `LeaseStore`."""
        with self._locked(keys.lease):
            now_ms = self._now_ms()
            for idx, key in enumerate(keys.tails):
                if self._peek(key) is None:
                    return LeaseReply(outcome=LeaseOutcome.INCOMPLETE, part_idx=idx)
            stored = self._peek(keys.body)
            if stored is not None and stored != body:
                return LeaseReply(outcome=LeaseOutcome.CONFLICT)
            lease = self._lease(keys.lease)
            if stored is None or lease is None:
                self._write(keys.body, body, now_ms + grant.ttl_ms)
                lease = Lease(
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
                self._save_lease(keys.lease, lease)
                for key in keys.tails:
                    self._lengthen(key, now_ms + grant.ttl_ms)
            elif lease.deadline_ms <= now_ms:
                # Nobody came in time; who commits again waits again.
                lease.owner, lease.state = grant.owner, "committed"
                lease.deadline_ms = now_ms + grant.lease_ms
                self._save_lease(keys.lease, lease)
            return _granted(lease, now_ms)

    def acquire(self, keys: HandoffKeys, grant: LeaseGrant, fencing_token: int) -> LeaseReply:
        """See `LeaseStore`."""
        with self._locked(keys.lease):
            now_ms = self._now_ms()
            lease = self._lease(keys.lease)
            if lease is None or self._peek(keys.body) is None:
                return LeaseReply(outcome=LeaseOutcome.GONE)
            if lease.attempt != grant.attempt or lease.fencing_token < fencing_token:
                return LeaseReply(outcome=LeaseOutcome.TAKEN)
            lease.fencing_token += 1
            lease.owner, lease.state = grant.owner, "held"
            lease.deadline_ms = now_ms + grant.lease_ms
            lease.expires_ms = max(lease.expires_ms, now_ms + grant.ttl_ms)
            self._save_lease(keys.lease, lease)
            self._lengthen(keys.body, now_ms + grant.ttl_ms)
            return _granted(lease, now_ms)

    def renew(self, keys: HandoffKeys, fencing_token: int, lease_ms: int) -> LeaseReply:
        """See `LeaseStore`."""
        with self._locked(keys.lease):
            now_ms = self._now_ms()
            lease = self._lease(keys.lease)
            if lease is None or self._peek(keys.body) is None:
                return LeaseReply(outcome=LeaseOutcome.GONE)
            if lease.fencing_token != fencing_token:
                return LeaseReply(outcome=LeaseOutcome.TAKEN)
            if now_ms > lease.deadline_ms:
                return LeaseReply(outcome=LeaseOutcome.LAPSED)
            lease.deadline_ms = now_ms + lease_ms
            self._save_lease(keys.lease, lease)
            return _granted(lease, now_ms)

    def release(self, keys: HandoffKeys, fencing_token: int | None) -> LeaseReply:
        """See `LeaseStore`."""
        with self._locked(keys.lease):
            if fencing_token is None:
                deleted = self._delete_all(keys)
                return LeaseReply(outcome=LeaseOutcome.GRANTED if deleted else LeaseOutcome.GONE)
            lease = self._lease(keys.lease)
            if lease is None:
                return LeaseReply(outcome=LeaseOutcome.GONE)
            if lease.fencing_token != fencing_token:
                return LeaseReply(outcome=LeaseOutcome.TAKEN)
            self._delete_all(keys)
            return LeaseReply(outcome=LeaseOutcome.GRANTED)

    def expire(self, keys: HandoffKeys) -> bool:
        """See `LeaseStore`."""
        with self._locked(keys.lease):
            lease = self._lease(keys.lease)
            if lease is not None and self._now_ms() <= lease.deadline_ms:
                return False
            if (
                lease is None
                and self._peek(keys.body) is None
                # Only tails: a commit may be on its way, unless they live as committed ones do.
                and max(map(self._life_ms, keys.tails), default=0) <= MAX_PENDING_MS
            ):
                return False
            return self._delete_all(keys)

    def audit(self) -> list[LeaseEntry]:
        """See `LeaseStore`."""
        values, leases = self._live_keys()
        bodies = {handoff_id_of_key(key) for key in values if key.startswith(b"dkv1:h:")}
        tails: dict[str, list[bytes]] = {}
        for key in values:
            if b":t:{" in key:
                tails.setdefault(handoff_id_of_key(key), []).append(key)
        names = bodies | set(tails) | {handoff_id_of_key(key) for key in leases}
        found = [self._audit_one(name, sorted(tails.get(name, []))) for name in sorted(names)]
        return [entry for entry in found if entry is not None]

    def _audit_one(self, handoff_id: str, tails: list[bytes]) -> LeaseEntry | None:
        """A hand-off at one moment; None if it is gone by now."""
        name, body = lease_key(handoff_id), body_key(handoff_id)
        with self._locked(name):
            lease, has_body = self._lease(name), self._peek(body) is not None
            if lease is not None:
                return _entry(handoff_id, lease, has_body, tails, self._now_ms())
            values = [value for key in tails if (value := self._peek(key)) is not None]
            if not has_body and not values:
                return None
            return leaseless(
                handoff_id,
                has_body=has_body,
                tails=tails,
                num_bytes=sum(map(len, values)),
                life_ms=max(map(self._life_ms, [body, *tails])),
            )

    def _delete_all(self, keys: HandoffKeys) -> bool:
        found = [self._drop(key) for key in (keys.body, *keys.tails)]
        return self._drop_lease(keys.lease) or any(found)


def _granted(lease: Lease, now_ms: int) -> LeaseReply:
    return LeaseReply(
        outcome=LeaseOutcome.GRANTED,
        fencing_token=lease.fencing_token,
        remaining_ms=max(0, lease.deadline_ms - now_ms),
    )


def _entry(
    handoff_id: str, lease: Lease, has_body: bool, tails: list[bytes], now_ms: int
) -> LeaseEntry:
    return LeaseEntry(
        handoff_id=handoff_id,
        has_lease=True,
        has_body=has_body,
        tails=tuple(tails),
        owner=lease.owner,
        state=lease.state,
        request_id=lease.request_id,
        attempt=lease.attempt,
        fencing_token=lease.fencing_token,
        num_bytes=lease.num_bytes,
        age_ms=now_ms - lease.created_ms,
        remaining_ms=lease.deadline_ms - now_ms,
    )
