"""Placement decisions for the status page: a line of facts each. Pure.

What a line leaves out (all candidates, what was known of them, what would have changed the choice)
is in the record, which the page asks for by request id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from balancer.explain.decisions import DecisionRecord
from balancer.routing.judgement import Judgement

Json = Mapping[str, object]


def decision_lines(records: Iterable[DecisionRecord], now: float) -> list[Json]:
    """The lines of these records.

    Args:
        now: Seconds of the clock that decisions are dated by.
    """
    return [_line(record, now) for record in records]


def _line(record: DecisionRecord, now: float) -> Json:
    placement, request = record.placement, record.request
    return {
        "request_id": request.request_id,
        "attempt": request.attempt,
        "age_s": round(max(0.0, now - record.decided_at), 1),
        "verdict": placement.verdict.value,
        "num_tokens": request.num_tokens,
        "cached_tokens": request.cached_tokens,
        "length_class": placement.length_class,
        "quota_s": round(placement.quota_s, 6),
        "prefill": _side(placement.prefill_side),
        "decode": _side(placement.decode_side),
    }


def _side(side: Judgement) -> Json:
    name, margin = side.margin()
    return {
        "chosen": side.chosen_id,
        "candidates": len(side.rows),
        "excluded": int((side.cause != 0).sum()),
        "ties": side.ties,
        "margin": [name, round(margin, 6)],
    }
