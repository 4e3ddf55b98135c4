"""Members for the status page: one list per fact, so that a thousand of them stay small. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from balancer.journey.tiers import imbalance
from balancer.membership.snapshot import CAUSES, Columns
from balancer.routing.shares import Shares

MAX_LISTED = 2048
"""Members of a role that are listed one by one; sums and counts are over all."""

STATES: tuple[str, ...] = ("ready", *(cause.value for cause in CAUSES))
"""What the numbers in `state` mean."""

Json = Mapping[str, object]


def prefill_members(columns: Columns, own: object, now: float) -> Json:
    """The prefill members.

    Args:
        own: What the policy keeps for itself; engines have a class if these are shares.
        now: Seconds of the clock that heartbeats are dated by.

    Returns:
        Sums, and under `members` the lists; `class` is -1 for an engine that serves every class,
        `moving` is 1 for one that first serves what it has.
    """
    shares = own if isinstance(own, Shares) else Shares()
    ids = columns.fixed.ids[:MAX_LISTED]
    return {
        **_sums(columns),
        "quota_s": round(float(columns.quota_s.sum()), 4),
        "members": {
            **_lists(columns, now),
            "quota_s": [round(value, 4) for value in columns.quota_s[:MAX_LISTED].tolist()],
            "class": [shares.class_of.get(member_id, -1) for member_id in ids],
            "moving": [int(member_id in shares.moving) for member_id in ids],
        },
    }


def decode_members(columns: Columns, now: float) -> Json:
    """The decode ranks.

    Returns:
        Sums, `imbalance` by axis (largest over mean), and under `members` the lists; a slot or
        KV capacity of 0 means that the member does not say.
    """
    return {
        **_sums(columns),
        "slots": int(columns.fixed.max_running.sum()),
        "kv_capacity": int(columns.fixed.kv_capacity.sum()),
        "imbalance": {axis: round(ratio, 4) for axis, ratio in imbalance(columns).items()},
        "members": {
            **_lists(columns, now),
            "rank": [member.rank for member in columns.members[:MAX_LISTED]],
            "slots": columns.fixed.max_running[:MAX_LISTED].tolist(),
            "kv_capacity": columns.fixed.kv_capacity[:MAX_LISTED].tolist(),
        },
    }


def _sums(columns: Columns) -> dict[str, object]:
    return {
        "total": len(columns),
        "ready": int((columns.cause == 0).sum()),
        "left_off": max(0, len(columns) - MAX_LISTED),
        "requests": int(columns.requests.sum()),
        "tokens": int(columns.tokens.sum()),
    }


def _lists(columns: Columns, now: float) -> dict[str, object]:
    ages_s = np.maximum(0.0, now - columns.seen_at[:MAX_LISTED])
    return {
        "id": list(columns.fixed.ids[:MAX_LISTED]),
        "requests": columns.requests[:MAX_LISTED].tolist(),
        "tokens": columns.tokens[:MAX_LISTED].tolist(),
        "state": columns.cause[:MAX_LISTED].tolist(),
        "age_s": [round(age_s, 1) for age_s in ages_s.tolist()],
    }
