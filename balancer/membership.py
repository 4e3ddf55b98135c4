"""Who is alive, how loaded, draining or not. Pure: heartbeats and `now` in, views out.

A member announces itself with numbered snapshots. A snapshot that is not newer than the last one is
dropped, so a delayed heartbeat never overwrites newer facts. Between two snapshots the balancer
counts its own placements here: work it has just handed out weighs on the next decision at once, and
no snapshot takes that weight away. What a snapshot shows beyond our own work is foreign (other
balancers, requests of a dead one) and is added on top.

Not known here: sockets, clocks, prompts. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Role(enum.Enum):
    """What a member does."""

    PREFILL = "prefill"
    DECODE = "decode"


class ExclusionCause(enum.Enum):
    """Why a member is no candidate."""

    STALE = "stale"
    DRAINING = "draining"
    NOT_READY = "not ready"
    SUSPECT = "suspect"
    FAILED_BEFORE = "failed this request before"
    FULL = "full"
    CONTEXT = "context too short"
    CAPACITY = "KV pool too small"
    NO_PARTNER = "no partner with the same KV layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of one rank at one moment, as its heartbeat reports it."""

    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0
    kv_capacity_tokens: int = 0
    max_running: int = 0
    queued_tokens: int = 0
    steps: int = 0
    placeholder_steps: int = 0
    last_progress_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank of a prefill or decode group, as it describes itself."""

    member_id: str
    role: Role
    address: str
    group_id: str
    fingerprint: bytes
    model: str
    max_model_len: int
    block_tokens: int
    ready: bool
    sequence: int
    rank: int = 0
    group_size: int = 1
    draining: bool = False
    load: Load = Load()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """What a placement decision may know of one member.

    Attributes:
        age_s: Seconds since the snapshot arrived.
        outstanding_requests: Requests placed here and not ended, ours and foreign ones.
        outstanding_tokens: Tokens of those requests (prompt and, on decode, expected output).
        exclusion: Why this member takes no new work now; None for a candidate.
        detail: Facts about the exclusion.
    """

    member: Member
    age_s: float
    outstanding_requests: int
    outstanding_tokens: int
    exclusion: ExclusionCause | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipStatistics:
    """Counts since start, and sizes now."""

    members: int
    ready_prefill: int
    ready_decode: int
    heartbeats: int
    stale_heartbeats: int
    forgotten: int
    suspected: int


@dataclass(slots=True)
class _Entry:
    member: Member
    seen_at: float
    foreign_requests: int = 0
    foreign_tokens: int = 0
    suspect_until: float = float("-inf")
    suspect_for_s: float = 0.0
    is_probed: bool = False
    suspect_cause: str = ""
    ordered_drain: bool = False
    work: dict[str, int] = dataclasses.field(default_factory=dict)

    def absorb(self, member: Member, now: float) -> None:
        """Takes a newer snapshot over; what it shows beyond our own work is foreign."""
        self.member, self.seen_at = member, now
        load = member.load
        tokens = load.queued_tokens if member.role is Role.PREFILL else load.kv_tokens
        self.foreign_requests = max(0, load.running + load.waiting - len(self.work))
        self.foreign_tokens = max(0, tokens - sum(self.work.values()))

    def exclusion(self, now: float, stale_after_s: float) -> tuple[ExclusionCause | None, str]:
        if now - self.seen_at > stale_after_s:
            return ExclusionCause.STALE, f"no heartbeat for {now - self.seen_at:.1f} s"
        if self.member.draining or self.ordered_drain:
            return ExclusionCause.DRAINING, ""
        if not self.member.ready:
            return ExclusionCause.NOT_READY, ""
        if now < self.suspect_until:
            return ExclusionCause.SUSPECT, self.suspect_cause
        return None, ""


class Membership:
    """The members one balancer knows.

    Args:
        stale_after_s: A member without a heartbeat for this long is no candidate.
        forget_after_s: A member without a heartbeat for this long is removed.
    """

    def __init__(self, *, stale_after_s: float, forget_after_s: float) -> None:
        if not 0 < stale_after_s <= forget_after_s:
            raise ValueError(
                f"stale_after_s {stale_after_s} must be positive and not above forget_after_s "
                f"{forget_after_s}: a member is a candidate no longer before it is forgotten"
            )
        self._stale_after_s = stale_after_s
        self._forget_after_s = forget_after_s
        self._entries: dict[str, _Entry] = {}
        self._heartbeats = 0
        self._stale_heartbeats = 0
        self._forgotten = 0
        self._suspected = 0

    def observe(self, member: Member, now: float) -> bool:
        """Takes one announcement; returns whether it was news.

        A member that comes back under a new id on the same address has restarted: the old one is
        forgotten at once, so that no request is sent to a dead process's name.
        """
        self._heartbeats += 1
        entry = self._entries.get(member.member_id)
        if entry is None:
            for old_id, old in list(self._entries.items()):
                if old.member.address == member.address:
                    self._forget(old_id)
            entry = self._entries[member.member_id] = _Entry(member, now)
        elif member.sequence <= entry.member.sequence:
            self._stale_heartbeats += 1
            return False
        entry.absorb(member, now)
        return True

    def assign(self, member_id: str, work_id: str, tokens: int) -> None:
        """Counts work handed to a member. Idempotent; unknown members are ignored."""
        if entry := self._entries.get(member_id):
            entry.work[work_id] = tokens

    def unassign(self, member_id: str, work_id: str) -> None:
        """Takes that work off again. Idempotent; unknown members are ignored."""
        if entry := self._entries.get(member_id):
            entry.work.pop(work_id, None)

    def suspect(self, member_id: str, cause: str, now: float, for_s: float) -> None:
        """Keeps new work from a member that failed, for a bounded time."""
        if entry := self._entries.get(member_id):
            self._suspected += 1
            entry.suspect_until = max(entry.suspect_until, now + for_s)
            entry.suspect_for_s = for_s
            entry.suspect_cause = cause
            entry.is_probed = False

    def probe(self, member_id: str, now: float) -> None:
        """A request goes to this member; after a suspicion, it is the one that tries it out.

        Others are kept from it for as long again, or until `absolve`.
        """
        entry = self._entries.get(member_id)
        if entry is not None and entry.suspect_for_s and now >= entry.suspect_until:
            entry.suspect_until = now + entry.suspect_for_s
            entry.is_probed = True

    def absolve(self, member_id: str) -> bool:
        """Ends the suspicion of a member that is tried out; returns whether there was one.

        A member that is not tried out yet stays suspect: what it began before goes on there, too.
        """
        entry = self._entries.get(member_id)
        if entry is None or not entry.is_probed:
            return False
        entry.suspect_until, entry.suspect_for_s, entry.is_probed = float("-inf"), 0.0, False
        return True

    def order_drain(self, member_id: str, drain: bool = True) -> bool:
        """Asks a member to drain with its next heartbeat; returns whether it is known."""
        entry = self._entries.get(member_id)
        if entry is not None:
            entry.ordered_drain = drain
        return entry is not None

    def is_drain_ordered(self, member_id: str) -> bool:
        """Whether the answer to this member's heartbeat should ask it to drain."""
        entry = self._entries.get(member_id)
        return entry is not None and entry.ordered_drain

    def sweep(self, now: float) -> list[str]:
        """Removes members not heard of for long; returns their ids."""
        gone = [
            member_id
            for member_id, entry in self._entries.items()
            if now - entry.seen_at > self._forget_after_s
        ]
        for member_id in gone:
            self._forget(member_id)
        return gone

    def views(self, now: float, role: Role | None = None) -> tuple[MemberView, ...]:
        """All members, in order of id, with what a decision may know of them."""
        return tuple(
            self._view(entry, now)
            for _, entry in sorted(self._entries.items())
            if role is None or entry.member.role is role
        )

    def can_serve(self, now: float) -> bool:
        """Whether some prefill and some decode member with one fingerprint take work now."""
        ready = [view.member for view in self.views(now) if not view.exclusion]
        return bool(_fingerprints(ready, Role.PREFILL) & _fingerprints(ready, Role.DECODE))

    def statistics(self, now: float) -> MembershipStatistics:
        """Counts since start, and sizes now."""
        ready = [view.member.role for view in self.views(now) if not view.exclusion]
        return MembershipStatistics(
            members=len(self._entries),
            ready_prefill=ready.count(Role.PREFILL),
            ready_decode=ready.count(Role.DECODE),
            heartbeats=self._heartbeats,
            stale_heartbeats=self._stale_heartbeats,
            forgotten=self._forgotten,
            suspected=self._suspected,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if an invariant is broken; for tests."""
        addresses = [entry.member.address for entry in self._entries.values()]
        assert len(addresses) == len(set(addresses)), "two members share an address"
        for member_id, entry in self._entries.items():
            assert entry.member.member_id == member_id
            assert entry.foreign_requests >= 0
            assert entry.foreign_tokens >= 0

    def _view(self, entry: _Entry, now: float) -> MemberView:
        exclusion, detail = entry.exclusion(now, self._stale_after_s)
        return MemberView(
            member=entry.member,
            age_s=now - entry.seen_at,
            outstanding_requests=len(entry.work) + entry.foreign_requests,
            outstanding_tokens=sum(entry.work.values()) + entry.foreign_tokens,
            exclusion=exclusion,
            detail=detail,
        )

    def _forget(self, member_id: str) -> None:
        del self._entries[member_id]
        self._forgotten += 1


def _fingerprints(members: Iterable[Member], role: Role) -> set[bytes]:
    return {member.fingerprint for member in members if member.role is role}
