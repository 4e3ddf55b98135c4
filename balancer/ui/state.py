"""What the status page shows, as one object of JSON. Pure: facts in, plain values out.

It is bounded, whatever the size of the cluster: members by `members.MAX_LISTED`, everything else by
the rings it comes from. It holds numbers, ids of requests and members, and words of ours: no text,
no tokens; of tenants only the names that stand in their ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from balancer.explain.decisions import DecisionRecord
from balancer.journey.recent import Ended
from balancer.journey.tiers import TierLoad
from balancer.membership.snapshot import Snapshot
from balancer.routing.base import Knowledge
from balancer.routing.shares import Shares
from balancer.ui.decisions import decision_lines
from balancer.ui.failures import failures
from balancer.ui.history import Point, rates
from balancer.ui.members import STATES, decode_members, prefill_members
from balancer.ui.trips import PHASES, trip_lines

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The shared store as a balancer sees it.

    Attributes:
        is_reachable: Whether it answered the last ping.
        refusal: Why no new hand-off begins; empty if one may.
        used_share, handoff_share: Of its memory, 0 to 1; None: not known, or it has no limit.
    """

    is_reachable: bool
    refusal: str = ""
    used_share: float | None = None
    handoff_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the page is made of, at one moment.

    Attributes:
        boundaries: Prompt lengths at which a new length class begins, ascending.
        tiers: Work by length class.
    """

    version: str
    model: str
    policy: str
    uptime_s: float
    is_ready: bool
    is_draining: bool
    running: int
    waiting: int
    snapshot: Snapshot
    knowledge: Knowledge
    boundaries: tuple[int, ...]
    tiers: tuple[TierLoad, ...]
    points: tuple[Point, ...]
    records: tuple[DecisionRecord, ...]
    ended: tuple[Ended, ...]
    num_ended: int
    num_tokens: int
    store: StoreFacts


def state_of(facts: Facts, counters: Mapping[str, float]) -> Json:
    """The object that the page draws.

    Args:
        counters: Of this process, as `Metrics.snapshot` tells them.
    """
    now, snapshot, own = facts.snapshot.taken_at, facts.snapshot, facts.knowledge.own
    requests_per_s, tokens_per_s = rates(facts.points, now, facts.num_ended, facts.num_tokens)
    first_token_s = [
        item.timing.first_token_us / 1e6 for item in facts.ended if item.timing.first_token_us
    ]
    return {
        "about": {
            "version": facts.version,
            "model": facts.model,
            "policy": facts.policy,
            "layout": _layout(snapshot),
            "uptime_s": round(facts.uptime_s, 1),
        },
        "health": {
            "ready": facts.is_ready,
            "draining": facts.is_draining,
            "why": _why_not(facts),
        },
        "requests": {
            "running": facts.running,
            "waiting": facts.waiting,
            "ended": facts.num_ended,
            "per_s": round(requests_per_s, 3),
            "tokens_per_s": round(tokens_per_s, 2),
            "first_token_p50_s": round(median(first_token_s), 6) if first_token_s else None,
        },
        "states": STATES,
        "prefill": prefill_members(snapshot.prefill, own, now),
        "decode": decode_members(snapshot.decode, now),
        "classes": _classes(facts),
        "has_shares": isinstance(own, Shares),
        "history": {
            "age_s": [round(now - point.at, 1) for point in facts.points],
            "shares": _turned([point.shares for point in facts.points]),
        },
        "decisions": decision_lines(facts.records, now),
        "phases": PHASES,
        "trips": trip_lines(facts.ended, now),
        "store": _store(facts),
        "failures": failures(counters),
    }


def _layout(snapshot: Snapshot) -> str:
    """KV layout of the first decode member that takes work, hexadecimal; empty without one."""
    ready = (snapshot.decode.cause == 0).nonzero()[0]
    return snapshot.decode.members[int(ready[0])].fingerprint.hex() if len(ready) else ""


def _why_not(facts: Facts) -> str:
    """Why no request is served now; empty if one could be."""
    if facts.is_draining:
        return "draining"
    # Members are not ready without the store: it is the cause, not they.
    if not facts.store.is_reachable:
        return "the KV store does not answer"
    for role, columns in (("prefill", facts.snapshot.prefill), ("decode", facts.snapshot.decode)):
        if not len(columns):
            return f"no {role} member has announced itself"
        if not (columns.cause == 0).any():
            return f"no {role} member takes work"
    return "" if facts.is_ready else "starting, or members with different KV layouts"


def _classes(facts: Facts) -> list[Json]:
    own = facts.knowledge.own
    counts = own.counts(len(facts.tiers)) if isinstance(own, Shares) else [None] * len(facts.tiers)
    quota_tokens = [tier.quota_tokens for tier in facts.tiers]
    total = sum(quota_tokens)
    return [
        {
            "name": tier.name,
            "from": ([0, *facts.boundaries])[number],
            "to": ([*facts.boundaries, None])[number],
            "engines": counts[number],
            "quota_tokens": tier.quota_tokens,
            "backlog_tokens": tier.backlog_tokens,
            "share": round(tier.quota_tokens / total, 4) if total else 0.0,
        }
        for number, tier in enumerate(facts.tiers)
    ]


def _store(facts: Facts) -> Json:
    """The store, and what the last requests had from it."""
    store, ended = facts.store, facts.ended
    prompt_tokens = sum(item.prompt_tokens for item in ended)
    return {
        "reachable": store.is_reachable,
        "refusal": store.refusal,
        "used_share": store.used_share,
        "handoff_share": store.handoff_share,
        "num_recent": len(ended),
        "hit_share": _share(sum(item.cached_tokens for item in ended), prompt_tokens),
        "published_bytes": sum(item.timing.published_bytes for item in ended),
        "prefix_bytes": sum(item.timing.prefix_bytes for item in ended),
        "fetched_bytes": sum(item.timing.fetched_bytes for item in ended),
        "ahead_share": _share(
            sum(item.timing.prefetched_bytes for item in ended),
            sum(item.timing.fetched_bytes for item in ended),
        ),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _turned(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """A list for each class instead of one for each moment."""
    return [[round(value, 4) for value in column] for column in zip(*rows, strict=True)]


def finite(value: object) -> object:
    """The value as JSON can say it: what is infinite becomes a word."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {name: finite(item) for name, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value
