"""All members at one moment, as columns: one row per member, one array per fact.

A decision looks at a thousand members, so it works on arrays, and a record of it keeps a reference
to them. `Columns` are never written after they are made and are shared between snapshots as long as
nothing changes; `MemberView`s are made only when somebody asks.

    rows    in order of member id, one table per role
    cause   0: candidate, else 1 + index of the `ExclusionCause` in `CAUSES`
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.membership.members import ExclusionCause, Member, MemberView, Role

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

_UNBOUNDED = 1 << 62

CAUSES: tuple[ExclusionCause, ...] = tuple(ExclusionCause)
CODE_OF: Mapping[ExclusionCause, int] = {cause: i + 1 for i, cause in enumerate(CAUSES)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Which members run in one group, that serves with all its ranks or not at all.

    Attributes:
        slots: [rows] number of the place (group and rank) that a member fills; a rank that has just
            been restarted under another id fills the same one.
        of_row: [rows] number of the group.
        of_slot: [places] the same.
        sizes: [groups] ranks that it needs.
        incomplete: [rows] whether ranks are missing though nobody is silent; None if nowhere.
    """

    slots: Ints
    of_row: Ints
    of_slot: Ints
    sizes: Ints
    incomplete: Bools | None

    def missing(self, live: Bools) -> Bools:
        """[rows] whether the group has too few ranks if only those members are `live` [rows]."""
        is_filled = np.zeros(len(self.of_slot), dtype=bool)
        is_filled[self.slots[live]] = True
        counts = np.bincount(self.of_slot[is_filled], minlength=len(self.sizes))
        lacking: Bools = (counts < self.sizes)[self.of_row]
        return lacking


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fixed:
    """Columns that change only when members come, go or describe themselves anew, each `[rows]`.

    Attributes:
        ids: Member ids, ascending.
        row_of: Id to row.
        hashes: uint64 of each id, for draws that do not depend on the order of rows.
        layouts: Number of the KV layout; equal numbers, equal fingerprints, over both roles.
        max_running: Slots; 0 if the member does not say.
        kv_capacity: KV tokens that fit; 0 if the member does not say.
        shortest_context: Least `max_model_len`.
        smallest_capacity: Least `kv_capacity` of those that say one.
        num_layouts: Above every layout number here.
        groups: What is known of their groups; None if every member is a group of its own.
    """

    ids: tuple[str, ...]
    row_of: Mapping[str, int]
    hashes: npt.NDArray[np.uint64]
    layouts: Ints
    max_model_len: Ints
    max_running: Ints
    kv_capacity: Ints
    shortest_context: int
    smallest_capacity: int
    num_layouts: int
    groups: Groups | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """The members of one role, each column `[rows]`.

    Attributes:
        requests: Outstanding requests, our own and foreign ones.
        tokens: Their tokens.
        quota_s: Their predicted prefill seconds.
        running, waiting: As the members' last heartbeats said.
        cause: See the module.
        details: Facts about an exclusion, by row, where a code does not say all.
    """

    role: Role
    fixed: Fixed
    members: tuple[Member, ...]
    seen_at: Floats
    requests: Ints
    tokens: Ints
    quota_s: Floats
    running: Ints
    waiting: Ints
    cause: Codes
    details: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Rows."""
        return len(self.members)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """Both roles at `taken_at`."""

    taken_at: float
    prefill: Columns
    decode: Columns

    def of(self, role: Role) -> Columns:
        """The columns of a role."""
        return self.prefill if role is Role.PREFILL else self.decode

    def view(self, role: Role, row: int) -> MemberView:
        """One member as an object."""
        columns = self.of(role)
        code = int(columns.cause[row])
        age_s = self.taken_at - float(columns.seen_at[row])
        return MemberView(
            member=columns.members[row],
            age_s=age_s,
            outstanding_requests=int(columns.requests[row]),
            outstanding_tokens=int(columns.tokens[row]),
            outstanding_quota_s=float(columns.quota_s[row]),
            exclusion=CAUSES[code - 1] if code else None,
            detail=self.detail(role, row),
        )

    def detail(self, role: Role, row: int) -> str:
        """Facts about a member's exclusion; empty if its cause says all."""
        columns = self.of(role)
        if columns.cause[row] == CODE_OF[ExclusionCause.STALE]:
            return f"no heartbeat for {self.taken_at - float(columns.seen_at[row]):.1f} s"
        return columns.details.get(row, "")

    def views(self) -> tuple[MemberView, ...]:
        """All members as objects, in order of id."""
        made = [self.view(role, row) for role in Role for row in range(len(self.of(role)))]
        return tuple(sorted(made, key=lambda view: view.member.member_id))


def snapshot_of(views: Iterable[MemberView], taken_at: float = 0.0) -> Snapshot:
    """The snapshot that shows these views, for tests and for records that were written down."""
    layouts: dict[bytes, int] = {}
    ordered = sorted(views, key=lambda view: view.member.member_id)
    sides = {
        role: _columns_of(role, [v for v in ordered if v.member.role is role], taken_at, layouts)
        for role in Role
    }
    return Snapshot(taken_at=taken_at, prefill=sides[Role.PREFILL], decode=sides[Role.DECODE])


def fixed_of(members: Sequence[Member], layouts: dict[bytes, int]) -> Fixed:
    """The fixed columns of members in order of id; `layouts` numbers fingerprints and grows."""
    ids = tuple(member.member_id for member in members)
    capacities = [member.load.kv_capacity_tokens for member in members]
    numbers = [layouts.setdefault(member.fingerprint, len(layouts)) for member in members]
    return Fixed(
        ids=ids,
        row_of={member_id: row for row, member_id in enumerate(ids)},
        hashes=np.array([hash_of(member_id) for member_id in ids], dtype=np.uint64),
        layouts=ints(numbers),
        max_model_len=ints(member.max_model_len for member in members),
        max_running=ints(member.load.max_running for member in members),
        kv_capacity=ints(capacities),
        shortest_context=min((member.max_model_len for member in members), default=_UNBOUNDED),
        smallest_capacity=min(filter(None, capacities), default=_UNBOUNDED),
        num_layouts=1 + max(numbers, default=-1),
        groups=groups_of(members),
    )


def groups_of(members: Sequence[Member]) -> Groups | None:
    """The groups of members of one role; None if every member is a group of its own."""
    if all(member.group_size <= 1 for member in members):
        return None
    groups: dict[tuple[str, int], int] = {}
    places: dict[tuple[int, int], int] = {}
    sizes: list[int] = []
    of_row: list[int] = []
    slots: list[int] = []
    for member in members:
        group = groups.setdefault((member.group_id, member.group_size), len(groups))
        if group == len(sizes):
            sizes.append(member.group_size)
        of_row.append(group)
        slots.append(places.setdefault((group, member.rank), len(places)))
    made = Groups(
        slots=ints(slots),
        of_row=ints(of_row),
        of_slot=ints(group for group, _ in places),
        sizes=ints(sizes),
        incomplete=None,
    )
    incomplete = made.missing(np.ones(len(members), dtype=bool))
    return replace(made, incomplete=incomplete if incomplete.any() else None)


def hash_of(text: str) -> int:
    """64 bits of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def ints(values: Iterable[int]) -> Ints:
    """A column of integers."""
    return np.fromiter(values, dtype=np.int64)


def _columns_of(
    role: Role, views: list[MemberView], taken_at: float, layouts: dict[bytes, int]
) -> Columns:
    members = tuple(view.member for view in views)
    return Columns(
        role=role,
        fixed=fixed_of(members, layouts),
        members=members,
        seen_at=_floats(taken_at - view.age_s for view in views),
        requests=ints(view.outstanding_requests for view in views),
        tokens=ints(view.outstanding_tokens for view in views),
        quota_s=_floats(view.outstanding_quota_s for view in views),
        running=ints(view.member.load.running for view in views),
        waiting=ints(view.member.load.waiting for view in views),
        cause=np.array(
            [CODE_OF[view.exclusion] if view.exclusion else 0 for view in views], dtype=np.int8
        ),
        details={row: view.detail for row, view in enumerate(views) if view.detail},
    )


def _floats(values: Iterable[Any]) -> Floats:
    return np.fromiter(values, dtype=np.float64)
