"""What a member is and how it describes itself: plain data, nothing decided here.

A member is one rank of a prefill or decode group. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.Enum):
    """What a member does."""

    PREFILL = "prefill"
    DECODE = "decode"

    # By identity: the hash of `Enum` is a Python call, and every decision looks things up by role.
    __hash__ = object.__hash__


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
    OTHER_LAYOUT = "another KV layout than the chosen prefill member"
    OTHER_CLASS = "serves another length class"
    MOVING = "serves its old queue before it moves to this length class"
    BUSY = "cannot start now"
    TOO_SLOW = "would miss the latency target"
    GROUP_INCOMPLETE = "a rank of its group is silent or missing"

    __hash__ = object.__hash__  # as for `Role`


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
    window_replay_tokens: int = 0
    metrics_address: str = ""
    draining: bool = False
    load: Load = Load()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """What a placement decision may know of one member.

    Attributes:
        age_s: Seconds since the snapshot arrived, without those in which the balancer's own loop
            was stuck.
        outstanding_requests: Requests placed here and not ended, ours and foreign ones.
        outstanding_tokens: Tokens of those requests (prompt and, on decode, expected output).
        outstanding_quota_s: Predicted compute seconds of those requests; prefill only.
        exclusion: Why this member takes no new work now; None for a candidate.
        detail: Facts about the exclusion.
    """

    member: Member
    age_s: float
    outstanding_requests: int
    outstanding_tokens: int
    outstanding_quota_s: float = 0.0
    exclusion: ExclusionCause | None = None
    detail: str = ""
