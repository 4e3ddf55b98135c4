"""What the errors of this library mean to a caller on the wire; for the rim of a service.

One table for every service that embeds the library: which class and reason of `runtime.errors`
stands for each of ours. Knows no transport.
"""

from __future__ import annotations

from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    KvStoreError,
    LayoutDiffers,
    LeaseLost,
    StaleAttempt,
    StoreDown,
    StoreFull,
    StoreRefused,
    TicketInvalid,
)
from runtime.errors import (
    Bug,
    Conflict,
    Corrupt,
    DisaggError,
    ErrorMap,
    FieldViolation,
    InvalidRequest,
    Mismatch,
    NotFound,
    Overloaded,
    Reason,
    Unavailable,
)

RETRY_AFTER_S = 1.0
"""Hint when the store is down or full; it recovers in seconds if at all."""


def register_errors(errors: ErrorMap) -> None:
    """Adds the library's errors to the map of a process."""
    errors.register(KvStoreError, translate)


def translate(error: KvStoreError) -> DisaggError:
    """The error of the tree that says the same; `metadata` carries the cause for programs."""
    text, facts = str(error), {"cause": error.cause}
    match error:
        case BlockCorrupt():
            facts |= {"kind": error.kind, "index": str(error.index), "check": error.reason}
            return Corrupt(text, reason=Reason.CHECKSUM_DIFFERS, metadata=facts)
        case BlockMissing():
            facts |= {"kind": error.kind, "index": str(error.index)}
            return NotFound(text, reason=Reason.BLOCK_EVICTED, metadata=facts)
        case LeaseLost():
            return Conflict(text, reason=Reason.LEASE_LOST, metadata=facts)
        case StaleAttempt():
            facts |= {"newest_attempt": str(error.newest)}
            return Conflict(text, reason=Reason.STALE_ATTEMPT, metadata=facts)
        case LayoutDiffers():
            return Mismatch(text, reason=Reason.KV_LAYOUT_DIFFERS, metadata=facts)
        case TicketInvalid():
            violation = FieldViolation(field=f"ticket.{error.field}", description=text)
            return InvalidRequest(text, metadata=facts, violations=(violation,))
        case StoreFull():
            return Overloaded(
                text, reason=Reason.POOL_FULL, metadata=facts, retry_after_s=RETRY_AFTER_S
            )
        case StoreDown() | StoreRefused():
            return Unavailable(
                text, reason=Reason.STORE_DOWN, metadata=facts, retry_after_s=RETRY_AFTER_S
            )
    return Bug(text, metadata=facts)
