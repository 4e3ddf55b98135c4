"""Requests that ended, as bars over time: from their arrival to the hand-over to decode. Pure.

    arrival                               first token            decode has the state
    ├ lookup ┤ queue ┤ route ┤ load ┤ wait ┤ compute ┤◆ publish ┤ fetch ┤ decode ...

What the balancer measured itself (up to the pair, and the first token) has its place on the axis;
what members said (load, wait, compute, publish, fetch) are lengths, laid behind it in order. The
gaps are messages on their way.

Of a request with several attempts the lengths are of the last one and the places of the first,
which no axis holds together: its bar is the last attempt from its own beginning, without a mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from balancer.journey.recent import Ended
from balancer.journey.request import Timing

Json = Mapping[str, object]

BEFORE = ("lookup", "queue", "route")
COMPUTE = ("load", "wait", "compute")
AFTER = ("publish", "fetch")
PHASES = (*BEFORE, *COMPUTE, *AFTER)
"""Names of the parts of a bar, in order."""


def trip_lines(ended: Iterable[Ended], now: float) -> list[Json]:
    """One line for each request.

    Args:
        now: Seconds of the clock that the ends are dated by.

    Returns:
        Each with `mark_us`, where the first token stands on the axis (0: nowhere), and
        `parts`: (number of the phase in `PHASES`, begin, length) in microseconds since
        the arrival; parts without length are left out.
    """
    return [_line(item, now) for item in ended]


def parts_of(timing: Timing, attempts: int = 1) -> list[tuple[int, int, int]]:
    """The parts of a bar: (number of the phase, begin, length), microseconds since the arrival.

    Args:
        attempts: With more than one, the parts are those of the last attempt, since its prefill
            was asked for.
    """
    route_us = max(0, timing.placement_us - timing.lookup_us - timing.admit_us)
    lengths = (
        *(timing.lookup_us, timing.admit_us, route_us),
        *(timing.prefix_load_us, timing.prefill_queue_us, timing.prefill_us),
        *(timing.commit_us, timing.fetch_us),
    )
    parts: list[tuple[int, int, int]] = []
    at_us = 0
    for number, (name, length_us) in enumerate(zip(PHASES, lengths, strict=True)):
        if attempts > 1 and name in BEFORE:
            continue  # of the first attempt
        if name == AFTER[0] and attempts <= 1:
            at_us = max(at_us, timing.first_token_us)
        if length_us > 0:
            parts.append((number, at_us, length_us))
            at_us += length_us
    return parts


def _line(item: Ended, now: float) -> Json:
    timing = item.timing
    return {
        "request_id": item.request_id,
        "age_s": round(max(0.0, now - item.ended_at), 1),
        "outcome": item.outcome,
        "reason": item.reason,
        "attempts": item.attempts,
        "prompt_tokens": item.prompt_tokens,
        "cached_tokens": item.cached_tokens,
        "generated_tokens": item.generated_tokens,
        "prefill": timing.prefill_member,
        "decode": timing.decode_member,
        "published_bytes": timing.published_bytes,
        "fetched_bytes": timing.fetched_bytes,
        "prefetched_bytes": timing.prefetched_bytes,
        "first_token_us": timing.first_token_us,
        "decode_us": timing.decode_us,
        "total_us": timing.total_us,
        "mark_us": timing.first_token_us if item.attempts <= 1 else 0,
        "parts": parts_of(timing, item.attempts),
    }
