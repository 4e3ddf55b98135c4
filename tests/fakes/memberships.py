"""Members and views of them, for tests of pure decisions."""

from __future__ import annotations

from typing import Any

from balancer.membership import Load, Member, MemberView, Role


def member(member_id: str = "d0", role: Role = Role.DECODE, **fields: Any) -> Member:
    """A ready member; load fields may be given beside its own."""
    load = {name: fields.pop(name) for name in list(fields) if hasattr(Load(), name)}
    values: dict[str, Any] = {
        "address": f"127.0.0.1:{sum(map(ord, member_id)) + len(member_id) * 1000}",
        "group_id": "g",
        "fingerprint": b"layout-1",
        "model": "m",
        "max_model_len": 4096,
        "block_tokens": 32,
        "ready": True,
        "sequence": 1,
        "load": Load(**load),
    }
    return Member(member_id=member_id, role=role, **{**values, **fields})


def view(
    member_id: str = "d0",
    role: Role = Role.DECODE,
    *,
    requests: int = 0,
    tokens: int = 0,
    quota_s: float = 0.0,
    exclusion: Any = None,
    **fields: Any,
) -> MemberView:
    """A view of a member with so much outstanding."""
    return MemberView(
        member=member(member_id, role, **fields),
        age_s=0.1,
        outstanding_requests=requests,
        outstanding_tokens=tokens,
        outstanding_quota_s=quota_s,
        exclusion=exclusion,
    )


def prefill(member_id: str = "p0", **fields: Any) -> MemberView:
    """A view of a prefill member."""
    return view(member_id, Role.PREFILL, **fields)
