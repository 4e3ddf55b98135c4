"""A trace as a tree: which span stands below which, in the order in which they began. Pure.

A span whose parent is not there (it was not recorded, was dropped, or belongs to a caller that
exports elsewhere) is a root. Clocks of processes differ by little on one machine and by more
between machines, so a child may seem to begin before its parent; that changes no order but its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from disagg.v1 import traces_pb2

_RANK = re.compile(r"^(.*?)-r(\d+)(-|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A span in its place.

    Attributes:
        depth: 0 for a root.
        guides: For each level above, whether more spans follow there.
        is_last: Whether no span follows on its level.
        has_children: Whether spans stand below it.
    """

    span: traces_pb2.TraceSpan
    depth: int
    guides: tuple[bool, ...]
    is_last: bool
    has_children: bool


def traces_of(spans: Iterable[traces_pb2.TraceSpan]) -> list[list[traces_pb2.TraceSpan]]:
    """Spans by trace; the trace that began first comes first."""
    traces: dict[bytes, list[traces_pb2.TraceSpan]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    return sorted(traces.values(), key=lambda trace: min(span.start_ns for span in trace))


def nodes_of(trace: Sequence[traces_pb2.TraceSpan]) -> list[Node]:
    """All spans of a trace in the order of a walk through its tree."""
    known = {span.span_id for span in trace}
    children: dict[bytes, list[traces_pb2.TraceSpan]] = {}
    for span in sorted(trace, key=lambda span: (span.start_ns, -span.end_ns, span.span_id)):
        parent = span.parent_span_id if span.parent_span_id in known else b""
        children.setdefault(parent, []).append(span)
    return list(_walk(children))


def _walk(children: dict[bytes, list[traces_pb2.TraceSpan]]) -> Iterator[Node]:
    """Depth first, without recursion: what a peer sends may be deep, and may go in circles."""
    stack = [(span, (), True) for span in reversed(children.get(b"", []))]
    seen: set[bytes] = set()
    pending: list[tuple[traces_pb2.TraceSpan, tuple[bool, ...], bool]] = list(stack)
    while pending:
        span, guides, is_last = pending.pop()
        if span.span_id in seen:
            continue
        seen.add(span.span_id)
        below = children.get(span.span_id, [])
        yield Node(
            span=span,
            depth=len(guides),
            guides=guides,
            is_last=is_last,
            has_children=bool(below),
        )
        inner = (*guides, not is_last)
        pending += [(child, inner, child is below[-1]) for child in reversed(below)]


def labels_of(trace: Iterable[traces_pb2.TraceSpan]) -> Mapping[tuple[str, str], str]:
    """The processes of a trace in a word or two, by service and process.

    Such as `decode r1`; where a role has several groups, ranks are told with their group:
    `decode-0 r1`.
    """
    processes = {(span.service, span.process) for span in trace}
    groups: dict[str, set[str]] = {}
    for service, process in processes:
        if found := _RANK.search(process):
            groups.setdefault(service, set()).add(found[1])
    return {
        (service, process): _label(service, process, len(groups.get(service, ())) > 1)
        for service, process in processes
    }


def _label(service: str, process: str, names_group: bool) -> str:
    role = service.removeprefix("disagg-") or "unknown"
    found = _RANK.search(process)
    if not found:
        return role
    return f"{found[1] if names_group else role} r{found[2]}"
