"""Plain data: what must hold of it anyway."""

from __future__ import annotations

import dataclasses

import pytest

from balancer.membership.members import ExclusionCause, Load, Role
from tests.fakes.memberships import member


def test_members_are_values() -> None:
    assert member("d0") == member("d0")
    assert member("d0") != member("d0", load=Load(running=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        member("d0").sequence = 2  # type: ignore[misc]


def test_roles_and_causes_are_found_in_tables() -> None:
    """Their hash is the identity, which is cheap; they still are one object per name."""
    assert {Role.PREFILL: 1}[Role("prefill")] == 1
    assert {cause: cause.value for cause in ExclusionCause}[ExclusionCause("stale")] == "stale"
