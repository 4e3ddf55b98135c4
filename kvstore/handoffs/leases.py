"""What the audit makes of a hand-off in the store, and the janitor's step.

    reserved -> committed -> held -> (released: gone)
        |           |          |
        |           +--lapsed--+--> (reaped: gone)
        +--> (dies by its own life)

Any client may be the janitor: each of its steps is one atomic script that looks at the server's
clock again, so two janitors and a late reader cannot hurt each other.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore.backends.base import HandoffKeys, LeaseEntry, LeaseStore
from kvstore.config import MAX_PENDING_MS
from kvstore.keys import TAIL_COMPONENTS, body_key, lease_key, tail_key


class LeaseState(enum.Enum):
    """Where a hand-off is in its life."""

    RESERVED = "reserved"
    """Tail segments without a body: a commit may be on its way, or its writer died."""
    COMMITTED = "committed"
    """Body and lease written; no reader yet."""
    HELD = "held"
    """A reader holds the lease."""
    LAPSED = "lapsed"
    """The deadline passed and nobody released it."""
    ORPHAN = "orphan"
    """Body without a lease, a lease without a body, or tails that outlived both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """One hand-off in the store: who holds it, why, and until when.

    `age_s` is None where no lease tells it; `remaining_s` is the rest of the lease, or without one
    the time until everything of the hand-off ended by itself.
    """

    handoff_id: str
    state: LeaseState
    reason: str
    owner: str
    request_id: str
    attempt: int
    fencing_token: int
    num_bytes: int
    age_s: float | None
    remaining_s: float

    @property
    def is_orphan(self) -> bool:
        """Whether nobody is going to release it."""
        return self.state in (LeaseState.LAPSED, LeaseState.ORPHAN)


_REASONS = {
    LeaseState.RESERVED: "tail written, ticket not yet",
    LeaseState.COMMITTED: "waits for a reader",
    LeaseState.HELD: "being read",
    LeaseState.LAPSED: "deadline passed",
    LeaseState.ORPHAN: "body or lease is missing",
}


_TAILS_ALONE = "lease and body are gone, the committed tail is left"


def classify(entry: LeaseEntry) -> LeaseRecord:
    """The audit record of a hand-off. Pure."""
    reason = ""
    if not entry.has_body and not entry.has_lease:
        state = LeaseState.RESERVED
        if entry.remaining_ms > MAX_PENDING_MS:
            # Only a commit makes tails live that long.
            state, reason = LeaseState.ORPHAN, _TAILS_ALONE
    elif not entry.has_body or not entry.has_lease:
        state = LeaseState.ORPHAN
    elif entry.remaining_ms <= 0:
        state = LeaseState.LAPSED
    else:
        state = LeaseState.HELD if entry.state == "held" else LeaseState.COMMITTED
    return LeaseRecord(
        handoff_id=entry.handoff_id,
        state=state,
        reason=reason or _REASONS[state],
        owner=entry.owner,
        request_id=entry.request_id,
        attempt=entry.attempt,
        fencing_token=entry.fencing_token,
        num_bytes=entry.num_bytes,
        age_s=None if entry.age_ms is None else entry.age_ms / 1000,
        remaining_s=max(0, entry.remaining_ms) / 1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorReport:
    """What one round of the janitor saw and did."""

    num_handoffs: int
    num_expired: int
    handoff_bytes: int


def sweep(leases: LeaseStore) -> JanitorReport:
    """Deletes every hand-off that no live lease protects.

    Returns:
        Counts; `handoff_bytes` are the bytes of the hand-offs that remain.
    """
    entries = leases.audit()
    expired = 0
    remaining_bytes = 0
    for entry in entries:
        if classify(entry).is_orphan and leases.expire(keys_of(entry)):
            expired += 1
        else:
            remaining_bytes += entry.num_bytes
    return JanitorReport(
        num_handoffs=len(entries), num_expired=expired, handoff_bytes=remaining_bytes
    )


def keys_of(entry: LeaseEntry) -> HandoffKeys:
    """All keys of a hand-off the audit found."""
    return HandoffKeys(
        body=body_key(entry.handoff_id), lease=lease_key(entry.handoff_id), tails=entry.tails
    )


def handoff_keys(fingerprint: bytes, handoff_id: str, num_segments: Sequence[int]) -> HandoffKeys:
    """All keys of a hand-off with this many segments per tail component."""
    return HandoffKeys(
        body=body_key(handoff_id),
        lease=lease_key(handoff_id),
        tails=tuple(
            tail_key(fingerprint, handoff_id, component, number)
            for component, count in zip(TAIL_COMPONENTS, num_segments, strict=True)
            for number in range(count)
        ),
    )
