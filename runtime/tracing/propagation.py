"""Trace context in metadata and headers: W3C `traceparent`, `tracestate` and `baggage`. Pure.

What comes from outside is trusted with nothing: a malformed value begins a new trace, as W3C asks,
and of the baggage only the members of `BAGGAGE_KEYS` get in. So whatever a caller sends, no other
baggage is ever sent on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

TRACEPARENT, TRACESTATE, BAGGAGE = "traceparent", "tracestate", "baggage"
BAGGAGE_KEYS = ("disagg.priority", "disagg.experiment")
MAX_BAGGAGE_CHARS = 256
"""Of one value; the metadata of a call has a budget."""
MAX_STATE_CHARS = 512

_SAMPLED = 0x01
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# Printable, as header fields have to be; members are not looked into.
_TRACESTATE = re.compile(r"[ -~]*")

Headers = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """Where a span stands: in which trace, and whether that is recorded.

    Attributes:
        trace_id: 128 bits, not 0.
        span_id: 64 bits, not 0.
        is_sampled: Whether spans below are recorded.
        state: `tracestate` of other systems, passed on as it came.
    """

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""

    def __str__(self) -> str:
        """The value of `traceparent`."""
        flags = _SAMPLED if self.is_sampled else 0
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{flags:02x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """What a call brought along; no context if it brought none that can be read."""

    context: TraceContext | None = None
    baggage: Mapping[str, str] = field(default_factory=dict)


def parse_traceparent(text: str, state: str = "") -> TraceContext | None:
    """The context a `traceparent` names; None if it names none.

    A later version may have more fields behind ours; version 00 may not.
    """
    match = _TRACEPARENT.fullmatch(text)
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not (trace_id and span_id):
        return None
    return TraceContext(
        trace_id=trace_id,
        span_id=span_id,
        is_sampled=bool(int(match[4], 16) & _SAMPLED),
        state=state,
    )


def read_headers(headers: Headers) -> Incoming:
    """The context and the allowed baggage among metadata or headers; names in any case."""
    found: dict[str, list[str]] = {TRACEPARENT: [], TRACESTATE: [], BAGGAGE: []}
    for key, value in headers:
        name = key.lower()
        if name in found:
            text = value if isinstance(value, str) else value.decode("latin-1")
            found[name].append(text.strip())
    if len(found[TRACEPARENT]) != 1:  # two of them contradict each other
        return Incoming(baggage=parse_baggage(",".join(found[BAGGAGE])))
    state = ",".join(filter(None, found[TRACESTATE]))
    if len(state) > MAX_STATE_CHARS or not _TRACESTATE.fullmatch(state):
        state = ""
    return Incoming(
        context=parse_traceparent(found[TRACEPARENT][0], state),
        baggage=parse_baggage(",".join(found[BAGGAGE])),
    )


def parse_baggage(text: str) -> dict[str, str]:
    """The allowed members of a `baggage` value; properties behind them are dropped."""
    members: dict[str, str] = {}
    if not text:
        return members
    for member in text.split(","):
        key, sign, rest = member.partition("=")
        value = unquote(rest.partition(";")[0].strip())
        if sign and key.strip() in BAGGAGE_KEYS and len(value) <= MAX_BAGGAGE_CHARS:
            members[key.strip()] = value
    return members


def write_headers(
    context: TraceContext | None, baggage: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Metadata or headers of a call made in this context."""
    pairs = []
    if context is not None:
        pairs.append((TRACEPARENT, str(context)))
        if context.state:
            pairs.append((TRACESTATE, context.state))
    allowed = {key: value for key, value in baggage.items() if key in BAGGAGE_KEYS}
    if allowed:
        members = (f"{key}={quote(value, safe='')}" for key, value in allowed.items())
        pairs.append((BAGGAGE, ",".join(members)))
    return tuple(pairs)
