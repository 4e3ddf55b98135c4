"""The two ports of the store: bytes under keys, and leases.

Both are synchronous and called from several threads at once. They know keys, bytes and
milliseconds; what a value means is decided above them. Nothing here verifies payloads: existence
answers are advisory and readers check what they read.

Invariant: every key carries a time to live, so nothing leaks when all writers die.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kvstore.buffers import Buffer
from kvstore.headers import HEADER_BYTES

Allocate = Callable[[int], Buffer]
"""Writable memory of a number of bytes; may hand out preallocated buffers."""

OnValue = Callable[[int, memoryview | None], None]
"""Called once per key with its position and its value, or None where there is none."""


class PutItem(NamedTuple):
    """One value to write if its key is free: its parts are written as one string."""

    key: bytes
    header: bytes
    payload: Buffer
    ttl_ms: int
    trailer: bytes = b""


Facts = Mapping[str, object]
"""What a server says of itself (its INFO): values by name."""

Place = Callable[[int, int], Buffer]
"""Writable memory for the value of the key at a position, which has a number of bytes."""

OnBytes = Callable[[int], None]
"""Called while a large value arrives, with the number of its bytes that are there so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatistics:
    """What a server says about itself; 0 where it does not say.

    `evicts` is whether it makes room by itself, so that a full one is no more than a warm cache.
    Keys are counted since the server was started.
    """

    address: str
    used_bytes: int
    max_bytes: int
    num_keys: int
    evicts: bool = False
    evicted_keys: int = 0
    expired_keys: int = 0


class BlockStore(Protocol):
    """Immutable values under keys. Called by any thread, many times a second; twice is harmless."""

    def lookup(self, keys: Sequence[bytes], *, extend_ms: int = 0) -> list[bool]:
        """Which keys exist; lengthens (never shortens) their life to `extend_ms` if that is set."""
        ...

    def put(self, items: Iterable[PutItem]) -> list[bytes | None]:
        """Writes values whose keys are free; takes items as it sends them.

        Returns:
            Per item None when it was written, else the first 64 bytes of what is there.

        Raises:
            StoreFull, StoreDown: Some items may have been written.
        """
        ...

    def put_index(
        self, key: bytes, segments: Sequence[bytes], expected: bytes, value: bytes, ttl_ms: int
    ) -> bool:
        """Replaces the record `expected` (empty: none) by `value` if all segments exist.

        Segments get the life of the record in the same atomic step.
        """
        ...

    def get(
        self,
        keys: Sequence[bytes],
        on_value: OnValue,
        place: Place | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """Reads values one after another, each into its place (fresh memory by default).

        Values of one block or hand-off come in their order, others in any. The callbacks run while
        later bytes are on the wire; `on_bytes` any number of times between `place` and `on_value`,
        or never.
        """
        ...

    def quarantine(self, key: bytes, header: bytes) -> bool:
        """Deletes a key if it still starts with `header`; True if it did."""
        ...

    def statistics(self) -> BackendStatistics:
        """Memory and keys of the server; raises StoreDown, so it serves as a ping."""
        ...

    def close(self) -> None:
        """Drops all connections. Twice is harmless."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffKeys:
    """All keys of one hand-off; they share a cluster slot."""

    body: bytes
    lease: bytes
    tails: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """Who gets a lease and for how long."""

    owner: str
    request_id: str
    attempt: int
    num_bytes: int
    lease_ms: int
    ttl_ms: int


class LeaseOutcome(enum.Enum):
    """Answer of the lease scripts."""

    GRANTED = "granted"
    GONE = "gone"
    """No lease, or no body: released, aborted, reaped or evicted."""
    TAKEN = "taken"
    """Somebody else holds a newer fencing token."""
    LAPSED = "lapsed"
    """Its deadline passed before it was renewed."""
    INCOMPLETE = "incomplete"
    """A part that has to exist does not."""
    CONFLICT = "conflict"
    """Something else is stored under this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReply:
    """Outcome with the fencing token and the remaining life of the lease, or the missing part."""

    outcome: LeaseOutcome
    fencing_token: int = 0
    remaining_ms: int = 0
    part_idx: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEntry:
    """One hand-off as the store holds it, for the audit. Times come from the server's clock.

    Without a lease nobody knows its age; `num_bytes` are then those of the tails that are there,
    and `remaining_ms` is the time until the last of its parts ends by itself.
    """

    handoff_id: str
    has_lease: bool
    has_body: bool
    tails: tuple[bytes, ...]
    owner: str = ""
    state: str = ""
    request_id: str = ""
    attempt: int = 0
    fencing_token: int = 0
    num_bytes: int = 0
    age_ms: int | None = None
    remaining_ms: int = 0


def leaseless(
    handoff_id: str, *, has_body: bool, tails: Sequence[bytes], num_bytes: int, life_ms: int
) -> LeaseEntry:
    """The entry of a hand-off without a lease; `num_bytes` counts the headers of its tails too."""
    return LeaseEntry(
        handoff_id=handoff_id,
        has_lease=False,
        has_body=has_body,
        tails=tuple(sorted(tails)),
        num_bytes=max(0, num_bytes - HEADER_BYTES * len(tails)),
        remaining_ms=life_ms,
    )


class LeaseStore(Protocol):
    """Hand-offs and their leases; each call is one atomic step in one slot. Server time only."""

    def fence(self, key: bytes, attempt: int, ttl_ms: int) -> int | None:
        """Raises the recorded attempt of a request to `attempt` (0: only reads it).

        Returns:
            The newest attempt known; 0 when there is none. None when the record is damaged: unless
            this only reads, a record of attempt `attempt + 1` has taken its place.
        """
        ...

    def commit(self, keys: HandoffKeys, body: bytes, grant: LeaseGrant) -> LeaseReply:
        """Writes body and lease together if all tails exist, and lengthens the tails' life.

        Twice with the same body is harmless: GRANTED with the lease as it is. CONFLICT when
        another body is there, INCOMPLETE with `part_idx` when a tail is missing.
        """
        ...

    def acquire(self, keys: HandoffKeys, grant: LeaseGrant, fencing_token: int) -> LeaseReply:
        """Makes `grant.owner` the holder with a new fencing token; an earlier holder loses it."""
        ...

    def renew(self, keys: HandoffKeys, fencing_token: int, lease_ms: int) -> LeaseReply:
        """Lengthens a live lease of this token; LAPSED, TAKEN or GONE otherwise."""
        ...

    def release(self, keys: HandoffKeys, fencing_token: int | None) -> LeaseReply:
        """Deletes lease, body and tails if the token is current (None: whatever the token).

        GONE when they are deleted already: idempotent. TAKEN leaves everything as it is.
        """
        ...

    def expire(self, keys: HandoffKeys) -> bool:
        """Deletes lease, body and tails if no live lease protects them; True if it did.

        Tails alone are spared while their life is that of tails that wait for their commit.
        """
        ...

    def audit(self) -> list[LeaseEntry]:
        """Every hand-off with anything in the store. Slow: scans all keys."""
        ...


class KeyStore(Protocol):
    """Keys by prefix, for administration only: slow, and no snapshot."""

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """All keys that start with a prefix; one that comes or goes meanwhile may be missing."""
        ...

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """Bytes stored under each key, header included; 0 for leases and for what is gone."""
        ...

    def delete(self, keys: Sequence[bytes]) -> int:
        """Deletes keys of any kind; how many there were."""
        ...

    def facts(self) -> list[Facts]:
        """What each server says of itself, in its own words; empty where there is no server."""
        ...


class Backend(BlockStore, LeaseStore, KeyStore, Protocol):
    """All ports in one object, as every backend provides them."""
