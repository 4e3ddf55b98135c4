"""The members of one role as growing facts, frozen into columns when a decision needs them.

A row is written when its member changes, which costs a microsecond; `freeze` copies the arrays that
changed since the last time and shares the others. Rows are laid out anew when a member comes, goes,
or describes itself differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from balancer.membership.members import ExclusionCause, Member, Role
from balancer.membership.snapshot import CODE_OF, Columns, Fixed, Groups, fixed_of

_STALE = CODE_OF[ExclusionCause.STALE]
_SUSPECT = CODE_OF[ExclusionCause.SUSPECT]
_GROUP_INCOMPLETE = CODE_OF[ExclusionCause.GROUP_INCOMPLETE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one member.

    Attributes:
        excluded: Why it takes no new work, apart from silence and suspicion.
        quota_s: Predicted prefill seconds of its outstanding work, as if none had begun.
        head_s: Those of the piece it works on.
        head_since: When it began that piece; the work left shrinks from then on.
    """

    member: Member
    seen_at: float
    excluded: ExclusionCause | None
    suspect_until: float
    suspect_cause: str
    requests: int
    tokens: int
    quota_s: float
    head_s: float
    head_since: float


class Table:
    """Columns of one role that follow their members.

    Args:
        role: Of all members here.
        layouts: Numbers of KV layouts, shared by the tables of one membership.
    """

    def __init__(self, role: Role, layouts: dict[bytes, int]) -> None:
        self._role = role
        self._layouts = layouts
        self._facts: dict[str, Facts] = {}
        self._members: list[Member] = []
        self._suspicions: dict[int, str] = {}
        self._is_laid_out = False
        self._fixed: Fixed
        self._live: dict[str, Any] = {}
        self._changed: set[str] = set()
        self._frozen: dict[str, Any] = {}

    def write(self, facts: Facts) -> None:
        """Sets a member's facts."""
        member_id = facts.member.member_id
        old = self._facts.get(member_id)
        self._facts[member_id] = facts
        if not self._is_laid_out:
            return
        if old is None or _identity(old.member) != _identity(facts.member):
            self._is_laid_out = False
            return
        self._set(self._fixed.row_of[member_id], facts, old)

    def remove(self, member_id: str) -> None:
        """Forgets a member; unknown ids change nothing."""
        if self._facts.pop(member_id, None) is not None:
            self._is_laid_out = False

    def freeze(self, now: float, stale_after_s: float, heard_until: float | None = None) -> Columns:
        """The columns at `now`.

        Args:
            stale_after_s: Members not seen for longer are silent.
            heard_until: Until when they could have been seen; None: until `now`.
        """
        if not self._is_laid_out:
            self._lay_out()
        for name in self._changed:
            self._frozen[name] = self._live[name].copy()
        if "seen_at" in self._changed:
            self._frozen["oldest"] = float(self._live["seen_at"].min(initial=np.inf))
        self._changed.clear()
        if self._frozen.get("members") is None:
            self._frozen["members"] = tuple(self._members)
        f = self._frozen
        cause = self._cause(now, stale_after_s, now if heard_until is None else heard_until)
        quota_s = f["quota_s"]
        if self._role is Role.PREFILL:
            quota_s = quota_s - np.minimum(np.maximum(now - f["head_since"], 0.0), f["head_s"])
        return Columns(
            role=self._role,
            fixed=self._fixed,
            members=f["members"],
            seen_at=f["seen_at"],
            requests=f["requests"],
            tokens=f["tokens"],
            quota_s=quota_s,
            running=f["running"],
            waiting=f["waiting"],
            cause=cause,
            details=self._details(cause),
        )

    def _cause(self, now: float, stale_after_s: float, heard_until: float) -> Any:
        """Why members take no new work; the frozen column itself if nobody is silent or suspect."""
        f = self._frozen
        cause = f["excluded"]
        if self._suspicions:
            is_suspect = (now < f["suspect_until"]) & (cause == 0)
            cause = np.where(is_suspect, np.int8(_SUSPECT), cause)
        if heard_until - f["oldest"] > stale_after_s:
            is_silent = heard_until - f["seen_at"] > stale_after_s
            cause = np.where(is_silent, np.int8(_STALE), cause)
        if self._fixed.groups is not None:
            cause = _with_groups(cause, self._fixed.groups)
        return cause

    def _details(self, cause: Any) -> Mapping[int, str]:
        """Why members are under suspicion, by row; there are few, if any."""
        return {row: text for row, text in self._suspicions.items() if cause[row] == _SUSPECT}

    def _lay_out(self) -> None:
        ordered = [self._facts[member_id] for member_id in sorted(self._facts)]
        self._members = [facts.member for facts in ordered]
        self._fixed = fixed_of(self._members, self._layouts)
        rows = len(ordered)
        self._live = {name: np.zeros(rows, dtype=dtype) for name, dtype in _COLUMNS.items()}
        self._suspicions = {}
        self._frozen = {}
        self._changed = set(_COLUMNS)
        for row, facts in enumerate(ordered):
            self._set(row, facts, None)
        self._is_laid_out = True

    def _set(self, row: int, facts: Facts, old: Facts | None) -> None:
        """Writes what differs from `old`."""
        if old is None or old.member is not facts.member:
            self._members[row] = facts.member
            self._frozen["members"] = None
            load = facts.member.load
            self._put("running", row, load.running)
            self._put("waiting", row, load.waiting)
        if old is None or old.seen_at != facts.seen_at:
            self._put("seen_at", row, facts.seen_at)
        if old is None or old.excluded is not facts.excluded:
            self._put("excluded", row, CODE_OF[facts.excluded] if facts.excluded else 0)
        if old is None or old.suspect_until != facts.suspect_until:
            self._put("suspect_until", row, facts.suspect_until)
            self._suspicions.pop(row, None)
            if facts.suspect_until > facts.seen_at or facts.suspect_cause:
                self._suspicions[row] = facts.suspect_cause
        for name in ("requests", "tokens", "quota_s", "head_s", "head_since"):
            value = getattr(facts, name)
            if old is None or getattr(old, name) != value:
                self._put(name, row, value)

    def _put(self, name: str, row: int, value: float) -> None:
        self._live[name][row] = value
        self._changed.add(name)


_COLUMNS: dict[str, Any] = {
    "seen_at": np.float64,
    "excluded": np.int8,
    "suspect_until": np.float64,
    "requests": np.int64,
    "tokens": np.int64,
    "quota_s": np.float64,
    "head_s": np.float64,
    "head_since": np.float64,
    "running": np.int64,
    "waiting": np.int64,
}


def _with_groups(cause: Any, groups: Groups) -> Any:
    """Takes the other ranks of a group out when one is silent or was never heard of.

    A rank that drains, is not ready or is suspect is there; the others go on.
    """
    is_silent = cause == _STALE
    incomplete = groups.missing(~is_silent) if is_silent.any() else groups.incomplete
    if incomplete is None:
        return cause
    return np.where(incomplete & (cause == 0), np.int8(_GROUP_INCOMPLETE), cause)


def _identity(member: Member) -> tuple[object, ...]:
    load = member.load
    return (
        member.fingerprint,
        member.max_model_len,
        member.group_id,
        member.group_size,
        member.rank,
        load.max_running,
        load.kv_capacity_tokens,
    )
