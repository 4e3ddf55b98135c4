"""A trace as lines of text: tree, offsets, bars on a common scale, and notes. Pure.

    process     name                     start ms  length  |bar on the scale of the trace      note|

A note stands beside its bar where there is room, else on a line of its own below. Calls are drawn
as lines, work as blocks, and a mark shows where an event such as the first token falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cli.output import plural
from cli.traces.notes import notes_of, summary_of
from cli.traces.tree import Node, labels_of, nodes_of
from disagg.v1 import traces_pb2

MIN_COLUMNS, DEFAULT_COLUMNS, MAX_COLUMNS = 80, 100, 180
_PARTS = " ▏▎▍▌▋▊▉"
_MARK = "◆"
_MARKED = ("first_token",)
_COLOURS = (36, 33, 32, 35, 34, 31)  # cyan, yellow, green, magenta, blue, red
_FIXED_CHARS = 23  # two times of nine, and the gaps


class Waterfall:
    """One trace.

    Args:
        trace: Its spans, in any order; at least one.
        columns: Width of the lines.
        has_colours: Whether processes get colours, as ANSI sequences.
    """

    def __init__(
        self,
        trace: Sequence[traces_pb2.TraceSpan],
        *,
        columns: int = DEFAULT_COLUMNS,
        has_colours: bool = False,
    ) -> None:
        self._nodes = nodes_of(trace)
        self._known = {span.span_id: span for span in trace}
        self._start_ns = min(span.start_ns for span in trace)
        self._length_ns = max(1, max(span.end_ns for span in trace) - self._start_ns)
        self._labels = labels_of(self._known.values())
        labels = dict.fromkeys(self._label(node.span) for node in self._nodes)
        self._colours = (
            {label: _COLOURS[number % len(_COLOURS)] for number, label in enumerate(labels)}
            if has_colours
            else {}
        )
        self._has_colours = has_colours
        self._process_chars = max(map(len, labels))
        names = max(len(_name(node)) for node in self._nodes)
        columns = min(max(columns, MIN_COLUMNS), MAX_COLUMNS)
        # The bars get at least a third of the line.
        room = columns - self._process_chars - _FIXED_CHARS
        self._name_chars = min(names, room - columns // 3)
        self._bar_chars = room - self._name_chars

    def lines(self) -> Iterator[str]:
        """The lines."""
        span = self._nodes[0].span
        processes = {(node.span.service, node.span.process) for node in self._nodes}
        yield (
            f"trace {span.trace_id.hex()}  {plural(len(self._nodes), 'span')} of "
            f"{plural(len(processes), 'process').replace('processs', 'processes')}, "
            f"{_ms(self._length_ns).strip()} ms"
        )
        if summary := summary_of(self._known.values()):
            yield f"      {summary}"
        yield ""
        yield self._dim(
            " ".join(
                (
                    " " * self._process_chars,
                    " " * self._name_chars,
                    "at ms".rjust(9),
                    "took ms".rjust(9),
                )
            )
            + "  "
            + self._scale()
        )
        shown = ""
        for node in self._nodes:
            label = self._label(node.span)
            yield from self._row(node, label if label != shown else "")
            shown = label

    def _label(self, span: traces_pb2.TraceSpan) -> str:
        return self._labels[span.service, span.process]

    def _scale(self) -> str:
        """Quarters of the whole length, in milliseconds."""
        line = ["0"]
        width = 1
        for quarter in (1, 2, 3, 4):
            text = _ms(self._length_ns * quarter // 4).strip()
            end = self._bar_chars * quarter // 4
            if end - len(text) - width < 1:
                continue
            line.append(text.rjust(end - width))
            width = end
        return "".join(line)

    def _row(self, node: Node, label: str) -> Iterator[str]:
        span = node.span
        colour = self._colours.get(self._label(span))
        name = _name(node)
        if len(name) > self._name_chars:
            name = name[: self._name_chars - 1] + "…"
        head = " ".join(
            (
                self._paint(label.ljust(self._process_chars), colour),
                name.ljust(self._name_chars),
                _ms(span.start_ns - self._start_ns),
                _ms(span.end_ns - span.start_ns),
            )
        )
        bar, begin, end = self._bar(span)
        note = ", ".join(notes_of(span, self._known))
        room = self._bar_chars
        if end + 1 + len(note) <= room:
            tail = " " * begin + self._paint(bar, colour) + (" " + self._dim(note) if note else "")
            yield f"{head}  {tail}".rstrip()
        elif len(note) + 1 <= begin:
            yield f"{head}  {self._dim(note.rjust(begin - 1))} {self._paint(bar, colour)}"
        else:
            yield f"{head}  {' ' * begin}{self._paint(bar, colour)}"
            if note:
                yield from self._below(node, note)

    def _below(self, node: Node, note: str) -> Iterator[str]:
        """A note that has no room beside its bar: below the name, over the rest of the line."""
        guide = _guide(node) + ("│  " if node.has_children else "   ")
        indent = " " * (self._process_chars + 1) + guide
        width = self._process_chars + self._name_chars + _FIXED_CHARS + self._bar_chars
        for line in _wrapped(note, max(20, width - len(indent))):
            yield f"{indent}{self._dim(line)}"

    def _bar(self, span: traces_pb2.TraceSpan) -> tuple[str, int, int]:
        """The bar, and its cells [begin, end)."""
        scale = self._bar_chars / self._length_ns
        exact = (span.start_ns - self._start_ns) * scale
        begin = min(int(exact), self._bar_chars - 1)
        length = max(0.0, (span.end_ns - self._start_ns) * scale - begin)
        if _is_call(span):
            cells = max(1, round(length))
            bar = "─" * cells if cells == 1 else f"╾{'─' * (cells - 2)}╼"
        else:
            # Within one cell, the length alone: it would seem longer by its offset in there.
            shown = (span.end_ns - span.start_ns) * scale if length <= 1 else length
            whole, rest = divmod(max(1, round(shown * 8)), 8)
            bar = "█" * whole + (_PARTS[rest] if rest else "")
        bar = bar[: self._bar_chars - begin]
        for event in span.events:
            if event.name in _MARKED:
                at = int((event.time_ns - self._start_ns) * scale) - begin
                if 0 <= at < len(bar):
                    bar = bar[:at] + _MARK + bar[at + 1 :]
        return bar, begin, begin + len(bar)

    def _paint(self, text: str, colour: int | None) -> str:
        return text if colour is None or not text.strip() else f"\x1b[{colour}m{text}\x1b[0m"

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._has_colours and text.strip() else text


def _name(node: Node) -> str:
    """The name with its place in the tree; calls that go out have an arrow."""
    name = node.span.name.removeprefix("disagg.v1.")
    arrow = "→ " if _is_call(node.span) else ""
    if not node.depth:
        return f"{arrow}{name}"
    branch = "└─ " if node.is_last else "├─ "
    above = "".join("│  " if follows else "   " for follows in node.guides[1:])
    return f"{above}{branch}{arrow}{name}"


def _guide(node: Node) -> str:
    if not node.depth:
        return ""
    above = "".join("│  " if follows else "   " for follows in node.guides[1:])
    return above + ("   " if node.is_last else "│  ")


def _is_call(span: traces_pb2.TraceSpan) -> bool:
    return span.kind == traces_pb2.SPAN_KIND_CLIENT and "db.system.name" not in span.attributes


def _wrapped(note: str, width: int) -> Iterator[str]:
    """A note in lines, broken between its parts."""
    line = ""
    for part in note.split(", "):
        if line and len(line) + 2 + len(part) > width:
            yield line + ","
            line = part
        else:
            line = f"{line}, {part}" if line else part
    yield line


def _ms(ns: int) -> str:
    return f"{ns / 1e6:9.1f}"


def plain(request_id: str, traces: Sequence[Sequence[traces_pb2.TraceSpan]]) -> dict[str, object]:
    """The same as JSON values; times in milliseconds from the begin of each trace."""
    return {"request_id": request_id, "traces": [_plain_trace(trace) for trace in traces]}


def _plain_trace(trace: Sequence[traces_pb2.TraceSpan]) -> Mapping[str, object]:
    start_ns = min(span.start_ns for span in trace)
    end_ns = max(span.end_ns for span in trace)
    return {
        "trace_id": trace[0].trace_id.hex(),
        "took_ms": (end_ns - start_ns) / 1e6,
        "spans": [_plain_span(node, start_ns) for node in nodes_of(trace)],
    }


def _plain_span(node: Node, start_ns: int) -> Mapping[str, object]:
    span = node.span
    return {
        "name": span.name,
        "kind": traces_pb2.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        "service": span.service,
        "process": span.process,
        "span_id": span.span_id.hex(),
        "parent_span_id": span.parent_span_id.hex(),
        "depth": node.depth,
        "at_ms": (span.start_ns - start_ns) / 1e6,
        "took_ms": (span.end_ns - span.start_ns) / 1e6,
        "is_error": span.is_error,
        "attributes": dict(sorted(span.attributes.items())),
        "events": [
            {
                "name": event.name,
                "at_ms": (event.time_ns - start_ns) / 1e6,
                "attributes": dict(sorted(event.attributes.items())),
            }
            for event in span.events
        ],
        "links": [
            {"kind": link.kind, "trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
            for link in span.links
        ],
    }
