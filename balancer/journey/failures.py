"""What a failed leg means: one table from the reason of an error to what the pipeline may do.

Pure. A row says under which cause a retry is counted, whether something is only down and worth
waiting for, whether the member that failed is kept from new work for a while, whether this request
avoids it for good, and whether the next attempt may read stored prefixes. A reason without a row is
final.
"""

from __future__ import annotations

from dataclasses import dataclass

from balancer.journey.transcript import StreamBroken
from balancer.membership import ExclusionCause, Role
from balancer.routing.base import Placement
from runtime.errors import (
    AlreadyRunning,
    Bug,
    DisaggError,
    InvalidRequest,
    Mismatch,
    Overloaded,
    Reason,
    Unavailable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """How to go on after a failure."""

    cause: str
    is_outage: bool = False
    suspects_member: bool = False
    avoids_member: bool = False
    bypasses_prefix: bool = False


_REMEDIES: dict[Reason, Remedy] = {
    # A prefix read again could be the corrupt one: the next attempt computes everything anew.
    Reason.CHECKSUM_DIFFERS: Remedy(cause="corrupt", bypasses_prefix=True),
    Reason.BLOCK_EVICTED: Remedy(cause="evicted"),
    Reason.LEASE_LOST: Remedy(cause="lease_lost"),
    Reason.STALE_ATTEMPT: Remedy(cause="stale_attempt"),
    Reason.PEER_GONE: Remedy(cause="peer_gone", is_outage=True, suspects_member=True),
    Reason.DRAINING: Remedy(cause="draining", is_outage=True, suspects_member=True),
    # The store is nobody's fault; it may be back before the deadline.
    Reason.STORE_DOWN: Remedy(cause="store_down", is_outage=True),
    Reason.STREAM_INTERRUPTED: Remedy(cause="interrupted", suspects_member=True),
    Reason.QUEUE_FULL: Remedy(cause="overload", avoids_member=True),
    Reason.POOL_FULL: Remedy(cause="overload", avoids_member=True),
    Reason.KV_LAYOUT_DIFFERS: Remedy(cause="layout", avoids_member=True),
    Reason.MODEL_REVISION_DIFFERS: Remedy(cause="layout", avoids_member=True),
    # An older attempt of the same id may still be winding down over there.
    Reason.DUPLICATE_REQUEST: Remedy(cause="still_running"),
}
_BROKEN_STREAM = Remedy(cause="broken_stream", suspects_member=True)
# Final, since whoever looks for a pair has waited already, but no fault of the request.
_NOBODY_LEFT = frozenset({Reason.NO_PREFILL, Reason.NO_DECODE})


class Refused(Overloaded):
    """The balancer itself turns the request away; no attempt follows, the caller may come again."""


class NobodyLeft(Unavailable):
    """No pair was found in the time that a request waits for one; no attempt follows."""


def remedy_for(error: DisaggError | StreamBroken) -> Remedy | None:
    """How to go on; None if the error is final."""
    if isinstance(error, Refused | NobodyLeft):
        return None
    if isinstance(error, StreamBroken):
        return _BROKEN_STREAM
    return _REMEDIES.get(error.reason)


def newest_attempt(error: DisaggError | StreamBroken) -> int:
    """The newer attempt that made ours stale; 0 if the error is another one or names none."""
    if isinstance(error, DisaggError) and error.reason is Reason.STALE_ATTEMPT:
        number = error.metadata.get("newest_attempt", "")
        return int(number) if number.isdecimal() else 0
    return 0


def final_error(error: DisaggError | StreamBroken, *, seq: int, attempts: int) -> DisaggError:
    """The error a caller gets when nothing more is tried.

    After the first token a failure of ours is a stream that can be resumed; before it, and for
    errors that are the request's own, it is what it was. An attempt that was overtaken again and
    again means that another call uses the id.
    """
    is_ours = (
        isinstance(error, Refused | NobodyLeft)
        or remedy_for(error) is not None
        or (isinstance(error, DisaggError) and error.reason in _NOBODY_LEFT)
    )
    if isinstance(error, StreamBroken):
        error = Bug(f"a member broke the numbering of tokens: {error}")
    if seq and is_ours:
        return Unavailable(
            f"the stream broke after token {seq} in attempt {attempts} ({error.message}); repeat "
            f"the call with the same request_id and last_seq={seq}",
            reason=Reason.STREAM_INTERRUPTED,
            metadata={"last_seq": str(seq), "cause": error.reason},
            retry_after_s=error.retry_after_s or 0.0,
        )
    if error.reason is Reason.STALE_ATTEMPT:
        return AlreadyRunning(
            f"request_id: another call uses it as well ({error.message}); wait for the end of that "
            "call, cancel it, or choose another id",
            reason=Reason.DUPLICATE_REQUEST,
        )
    return error


def no_pair_error(
    placement: Placement, *, retry_after_s: float, is_store_down: bool = False
) -> DisaggError:
    """Why no pair could be chosen, as an error for the caller.

    Args:
        is_store_down: Whether the store did not answer the balancer itself; members that are not
            ready then are not to blame.
    """
    causes = {item.cause for item in placement.exclusions}
    roles = {role: [item for item in placement.exclusions if item.role is role] for role in Role}
    if ExclusionCause.FULL in causes:
        return Overloaded(
            f"every decode member is full: {placement.reason}; try again later",
            reason=Reason.POOL_FULL,
            retry_after_s=retry_after_s,
        )
    for role in Role:
        hopeless = {ExclusionCause.CONTEXT, ExclusionCause.CAPACITY}
        if roles[role] and all(item.cause in hopeless for item in roles[role]):
            return InvalidRequest(
                f"prompt: no {role.value} member can hold the request: {placement.reason}; send a "
                "shorter prompt or ask for fewer tokens",
                reason=Reason.PROMPT_TOO_LONG,
            )
    unpaired = [item for item in placement.exclusions if item.cause is ExclusionCause.NO_PARTNER]
    if {item.role for item in unpaired} == set(Role):
        return Mismatch(
            f"prefill and decode members have different KV layouts: {placement.reason}; start "
            "both from the same model directory with the same settings",
            reason=Reason.KV_LAYOUT_DIFFERS,
        )
    if is_store_down and ExclusionCause.NOT_READY in causes:
        return NobodyLeft(
            f"the KV store does not answer, so no member is ready: {placement.reason}; the same "
            "call can be served once it is back",
            reason=Reason.STORE_DOWN,
            retry_after_s=retry_after_s,
        )
    prefill_lacks = not any(item.role is Role.PREFILL for item in unpaired)
    return NobodyLeft(
        f"no {'prefill' if prefill_lacks else 'decode'} member is ready: {placement.reason}",
        reason=Reason.NO_PREFILL if prefill_lacks else Reason.NO_DECODE,
        retry_after_s=retry_after_s,
    )
