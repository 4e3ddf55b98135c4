"""Who is alive, how loaded, draining or not. Pure: heartbeats and `now` in, views out.

A member announces itself with numbered snapshots. A snapshot that is not newer than the last one is
dropped, so a delayed heartbeat never overwrites newer facts. Between two snapshots the balancer
counts its own placements here: work it has just handed out weighs on the next decision at once, and
no snapshot takes that weight away. What a snapshot shows beyond our own work is foreign (other
balancers, requests of a dead one) and is added on top.

Silence is judged by what this balancer could have heard. While its own loop is stuck it reads no
heartbeat, so nobody grows silent; whoever runs it calls `listen` several times a second, and time
beyond that between two calls is held against no member.

Not known here: sockets, clocks, prompts. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from balancer.membership.members import ExclusionCause, Member, MemberView, Role
from balancer.membership.snapshot import Snapshot
from balancer.membership.table import Facts, Table

LISTEN_S = 0.25
"""Seconds between two calls of `listen`."""

# Twice that: a loop that turns a little late still hears.
_HEARING_S = 2 * LISTEN_S


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
    deaf_s: float


@dataclass(frozen=True, slots=True)
class _Work:
    tokens: int
    quota_s: float


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
    work: dict[str, _Work] = dataclasses.field(default_factory=dict)
    own_tokens: int = 0
    head_since: float = 0.0

    def absorb(self, member: Member, now: float) -> None:
        """Takes a newer snapshot over; what it shows beyond our own work is foreign."""
        self.member, self.seen_at = member, now
        load = member.load
        tokens = load.queued_tokens if member.role is Role.PREFILL else load.kv_tokens
        self.foreign_requests = max(0, load.running + load.waiting - len(self.work))
        self.foreign_tokens = max(0, tokens - self.own_tokens)

    def put(self, work_id: str, work: _Work, now: float) -> None:
        """Sets one piece of our own work."""
        if not self.work:
            self.head_since = now
        old = self.work.get(work_id)
        self.work[work_id] = work
        self.own_tokens += work.tokens - (old.tokens if old else 0)

    def take(self, work_id: str, now: float) -> bool:
        """Removes one piece of our own work; returns whether it was there."""
        old = self.work.pop(work_id, None)
        if old is None:
            return False
        self.own_tokens -= old.tokens
        self.head_since = now  # an engine takes the next prompt when one is done
        return True

    def facts(self, price_s: float) -> Facts:
        """What the table shows; `price_s` is what a foreign token costs in prefill."""
        excluded: ExclusionCause | None = None
        if self.member.draining or self.ordered_drain:
            excluded = ExclusionCause.DRAINING
        elif not self.member.ready:
            excluded = ExclusionCause.NOT_READY
        is_prefill = self.member.role is Role.PREFILL
        own_s = sum(work.quota_s for work in self.work.values()) if is_prefill else 0.0
        head = next(iter(self.work.values()), None)
        return Facts(
            member=self.member,
            seen_at=self.seen_at,
            excluded=excluded,
            suspect_until=self.suspect_until,
            suspect_cause=self.suspect_cause,
            requests=len(self.work) + self.foreign_requests,
            tokens=self.own_tokens + self.foreign_tokens,
            quota_s=own_s + self.foreign_tokens * price_s if is_prefill else 0.0,
            head_s=head.quota_s if is_prefill and head else 0.0,
            head_since=self.head_since,
        )


class Membership:
    """The members one balancer knows.

    Args:
        stale_after_s: A member without a heartbeat for this long is no candidate.
        forget_after_s: A member without a heartbeat for this long is removed. Both are times in
            which this balancer listened.
        on_call: Told every call that changes anything, with its arguments; for a journal.
    """

    def __init__(
        self,
        *,
        stale_after_s: float,
        forget_after_s: float,
        on_call: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        if not 0 < stale_after_s <= forget_after_s:
            raise ValueError(
                f"stale_after_s {stale_after_s} must be positive and not above forget_after_s "
                f"{forget_after_s}: a member is a candidate no longer before it is forgotten"
            )
        self._on_call = on_call
        self._stale_after_s = stale_after_s
        self._forget_after_s = forget_after_s
        self._entries: dict[str, _Entry] = {}
        layouts: dict[bytes, int] = {}
        self._tables = {role: Table(role, layouts) for role in Role}
        self._price_s = 0.0  # prefill seconds of a token, as of the last work we handed out
        self._heartbeats = 0
        self._stale_heartbeats = 0
        self._forgotten = 0
        self._suspected = 0
        self._listened_at: float | None = None
        self._deaf_s = 0.0

    def listen(self, now: float) -> None:
        """The loop turned: what had come until now was, or is about to be, observed.

        Never called (in the simulator), members are judged by the clock alone.
        """
        self._note("listen", now=now)
        deaf_s = 0.0 if self._listened_at is None else now - self._listened_at - _HEARING_S
        self._listened_at = now
        if deaf_s <= 0:
            return
        self._deaf_s += deaf_s
        for entry in self._entries.values():
            entry.seen_at = min(now, entry.seen_at + deaf_s)
            self._write(entry)

    def _heard_until(self, now: float) -> float:
        """Until when a member that spoke would have been heard."""
        return now if self._listened_at is None else min(now, self._listened_at + _HEARING_S)

    def observe(self, member: Member, now: float) -> bool:
        """Takes one announcement; returns whether it was news.

        A member that comes back under a new id on the same address has restarted: the old one is
        forgotten at once, so that no request is sent to a dead process's name.
        """
        self._note("observe", member=member, now=now)
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
        if entry.member.role is not member.role:
            self._tables[entry.member.role].remove(member.member_id)
        entry.absorb(member, now)
        self._write(entry)
        return True

    def assign(
        self, member_id: str, work_id: str, tokens: int, *, quota_s: float = 0.0, now: float = 0.0
    ) -> None:
        """Counts work handed to a member. Idempotent; unknown members are ignored.

        Args:
            tokens: KV tokens it will hold there.
            quota_s: Predicted prefill seconds; 0 on decode members.
            now: When it was handed over.
        """
        self._note(
            "assign", member_id=member_id, work_id=work_id, tokens=tokens, quota_s=quota_s, now=now
        )
        if entry := self._entries.get(member_id):
            if tokens and quota_s:
                self._price_s = quota_s / tokens
            entry.put(work_id, _Work(tokens, quota_s), now)
            self._write(entry)

    def unassign(self, member_id: str, work_id: str, *, now: float = 0.0) -> None:
        """Takes that work off again. Idempotent; unknown members are ignored."""
        self._note("unassign", member_id=member_id, work_id=work_id, now=now)
        entry = self._entries.get(member_id)
        if entry is not None and entry.take(work_id, now):
            self._write(entry)

    def suspect(self, member_id: str, cause: str, now: float, for_s: float) -> None:
        """Keeps new work from a member that failed, for a bounded time."""
        self._note("suspect", member_id=member_id, cause=cause, now=now, for_s=for_s)
        if entry := self._entries.get(member_id):
            self._suspected += 1
            entry.suspect_until = max(entry.suspect_until, now + for_s)
            entry.suspect_for_s = for_s
            entry.suspect_cause = cause
            entry.is_probed = False
            self._write(entry)

    def probe(self, member_id: str, now: float) -> None:
        """A request goes to this member; after a suspicion, it is the one that tries it out.

        Others are kept from it for as long again, or until `absolve`.
        """
        self._note("probe", member_id=member_id, now=now)
        entry = self._entries.get(member_id)
        if entry is not None and entry.suspect_for_s and now >= entry.suspect_until:
            entry.suspect_until = now + entry.suspect_for_s
            entry.is_probed = True
            self._write(entry)

    def absolve(self, member_id: str) -> bool:
        """Ends the suspicion of a member that is tried out; returns whether there was one.

        A member that is not tried out yet stays suspect: what it began before goes on there, too.
        """
        entry = self._entries.get(member_id)
        if entry is None or not entry.is_probed:
            return False  # by far most signs of life; they change nothing and go into no journal
        self._note("absolve", member_id=member_id)
        entry.suspect_until, entry.suspect_for_s, entry.is_probed = float("-inf"), 0.0, False
        self._write(entry)
        return True

    def order_drain(self, member_id: str, drain: bool = True) -> bool:
        """Asks a member to drain with its next heartbeat; returns whether it is known."""
        self._note("order_drain", member_id=member_id, drain=drain)
        entry = self._entries.get(member_id)
        if entry is not None:
            entry.ordered_drain = drain
            self._write(entry)
        return entry is not None

    def is_drain_ordered(self, member_id: str) -> bool:
        """Whether the answer to this member's heartbeat should ask it to drain."""
        entry = self._entries.get(member_id)
        return entry is not None and entry.ordered_drain

    def sweep(self, now: float) -> list[str]:
        """Removes members not heard of for long; returns their ids."""
        self._note("sweep", now=now)
        heard_until = self._heard_until(now)
        gone = [
            member_id
            for member_id, entry in self._entries.items()
            if heard_until - entry.seen_at > self._forget_after_s
        ]
        for member_id in gone:
            self._forget(member_id)
        return gone

    def snapshot(self, now: float) -> Snapshot:
        """All members as columns; what did not change is shared with earlier snapshots."""
        heard_until = self._heard_until(now)
        prefill, decode = (
            self._tables[role].freeze(now, self._stale_after_s, heard_until)
            for role in (Role.PREFILL, Role.DECODE)
        )
        return Snapshot(taken_at=now, prefill=prefill, decode=decode)

    def views(self, now: float, role: Role | None = None) -> tuple[MemberView, ...]:
        """All members, in order of id, as objects; decisions use `snapshot`."""
        views = self.snapshot(now).views()
        return tuple(view for view in views if role is None or view.member.role is role)

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
            deaf_s=self._deaf_s,
        )

    def check_integrity(self) -> None:
        """Raises AssertionError if an invariant is broken; for tests."""
        addresses = [entry.member.address for entry in self._entries.values()]
        assert len(addresses) == len(set(addresses)), "two members share an address"
        for member_id, entry in self._entries.items():
            assert entry.member.member_id == member_id
            assert entry.foreign_requests >= 0
            assert entry.foreign_tokens >= 0
            assert entry.own_tokens == sum(work.tokens for work in entry.work.values())
            rows = self._tables[entry.member.role].freeze(entry.seen_at, self._stale_after_s)
            row = rows.fixed.row_of[member_id]
            assert rows.members[row] is entry.member
            assert rows.requests[row] == len(entry.work) + entry.foreign_requests
            assert rows.tokens[row] == entry.own_tokens + entry.foreign_tokens

    def _note(self, call: str, **arguments: Any) -> None:
        if self._on_call is not None:
            self._on_call(call, arguments)

    def _write(self, entry: _Entry) -> None:
        self._tables[entry.member.role].write(entry.facts(self._price_s))

    def _forget(self, member_id: str) -> None:
        entry = self._entries.pop(member_id)
        self._tables[entry.member.role].remove(member_id)
        self._forgotten += 1


def _fingerprints(members: Iterable[Member], role: Role) -> set[bytes]:
    return {member.fingerprint for member in members if member.role is role}
