"""Rows follow their members; what did not change is shared."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from balancer.membership.members import ExclusionCause, Role
from balancer.membership.snapshot import CAUSES
from balancer.membership.table import Facts, Table
from tests.fakes.memberships import member

NEVER = float("-inf")


def facts(member_id: str = "p0", **fields: Any) -> Facts:
    values: dict[str, Any] = {
        "member": member(member_id, Role.PREFILL, address=member_id),
        "seen_at": 0.0,
        "excluded": None,
        "suspect_until": NEVER,
        "suspect_cause": "",
        "requests": 0,
        "tokens": 0,
        "quota_s": 0.0,
        "head_s": 0.0,
        "head_since": 0.0,
    }
    return Facts(**{**values, **fields})


def table(*rows: Facts) -> Table:
    made = Table(Role.PREFILL, {})
    for row in rows:
        made.write(row)
    return made


def test_frozen_columns_never_change() -> None:
    rows = table(facts(requests=1))
    before = rows.freeze(0.0, 5.0)
    rows.write(facts(requests=2))
    after = rows.freeze(0.0, 5.0)
    assert (before.requests[0], after.requests[0]) == (1, 2)
    assert after.tokens is before.tokens
    assert after.fixed is before.fixed


def test_rows_are_laid_out_anew_when_members_come_and_go() -> None:
    rows = table(facts("p1", tokens=1), facts("p0", tokens=0))
    assert rows.freeze(0.0, 5.0).tokens.tolist() == [0, 1]
    rows.write(facts("p2", tokens=2))
    assert rows.freeze(0.0, 5.0).fixed.ids == ("p0", "p1", "p2")
    rows.remove("p1")
    rows.remove("nobody")
    assert rows.freeze(0.0, 5.0).tokens.tolist() == [0, 2]
    changed = facts("p0", member=member("p0", Role.PREFILL, max_model_len=7))
    rows.write(changed)
    assert rows.freeze(0.0, 5.0).fixed.max_model_len.tolist() == [7, 4096]


def test_silence_outweighs_what_the_member_said() -> None:
    drains = facts("p0", excluded=ExclusionCause.DRAINING, suspect_until=9.0, suspect_cause="fell")
    suspect = facts("p1", suspect_until=9.0, suspect_cause="fell")
    rows = table(drains, suspect)
    causes = [CAUSES[code - 1] for code in rows.freeze(4.0, 5.0).cause]
    assert causes == [ExclusionCause.DRAINING, ExclusionCause.SUSPECT]
    assert rows.freeze(4.0, 5.0).details == {1: "fell"}
    stale = rows.freeze(5.1, 5.0)
    assert {CAUSES[code - 1] for code in stale.cause} == {ExclusionCause.STALE}
    rows.write(dataclasses.replace(suspect, seen_at=6.0, suspect_until=NEVER, member=member("p1")))
    assert rows.freeze(6.0, 5.0).cause[1] == 0


def test_work_shrinks_as_the_engine_gets_on_with_it() -> None:
    rows = table(facts(quota_s=10.0, head_s=4.0, head_since=100.0))
    left = [float(rows.freeze(now, 999.0).quota_s[0]) for now in (99.0, 100.0, 103.0, 120.0)]
    assert np.allclose(left, [10.0, 10.0, 7.0, 6.0])  # the rest has not begun
