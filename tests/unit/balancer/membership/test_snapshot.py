"""Columns and the objects they stand for."""

from __future__ import annotations

from balancer.membership.members import ExclusionCause, Role
from balancer.membership.snapshot import CAUSES, CODE_OF, hash_of, snapshot_of
from tests.fakes.memberships import prefill, view

VIEWS = [
    prefill("p1", requests=2, tokens=30, quota_s=1.5),
    view("d0", requests=1, tokens=7, running=3, waiting=4, kv_capacity_tokens=99),
    prefill("p0", exclusion=ExclusionCause.DRAINING, fingerprint=b"layout-2"),
]


def test_what_goes_in_comes_out_in_order_of_id() -> None:
    snapshot = snapshot_of(VIEWS, taken_at=10.0)
    out = snapshot.views()
    assert [item.member.member_id for item in out] == ["d0", "p0", "p1"]
    for item, expected in zip(out, (VIEWS[1], VIEWS[2], VIEWS[0]), strict=True):
        assert item.member is expected.member
        assert item.age_s == 10.0 - (10.0 - 0.1)
        assert item.outstanding_requests == expected.outstanding_requests
        assert item.outstanding_tokens == expected.outstanding_tokens
        assert item.outstanding_quota_s == expected.outstanding_quota_s
        assert item.exclusion is expected.exclusion


def test_columns_hold_what_rules_read() -> None:
    snapshot = snapshot_of(VIEWS)
    prefills, decodes = snapshot.prefill, snapshot.of(Role.DECODE)
    assert prefills.fixed.ids == ("p0", "p1")
    assert prefills.fixed.row_of == {"p0": 0, "p1": 1}
    assert (decodes.running[0], decodes.waiting[0], decodes.fixed.kv_capacity[0]) == (3, 4, 99)
    assert prefills.fixed.layouts[1] == decodes.fixed.layouts[0] != prefills.fixed.layouts[0]


def test_codes_and_causes_agree() -> None:
    assert all(CAUSES[CODE_OF[cause] - 1] is cause for cause in ExclusionCause)
    assert 0 not in CODE_OF.values()


def test_the_hash_of_an_id_is_the_same_in_every_process() -> None:
    # blake2b of 8 bytes, as any other implementation gives it.
    assert hash_of("") == 0xE4A6A0577479B2B4
    assert hash_of("a") != hash_of("b")
