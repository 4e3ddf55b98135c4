"""What goes to the terminal: tables, units, progress. Text in, text out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence


def say(text: str = "") -> None:
    """Progress and remarks: standard error, so that standard output stays clean."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def show(text: str = "") -> None:
    """The result of the command: standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_json(value: Mapping[str, object] | Sequence[object]) -> None:
    """One JSON value on one line of standard output."""
    show(json.dumps(value, ensure_ascii=False))


def table(
    rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "  "
) -> list[str]:
    """Lines with the cells of each column under each other.

    Args:
        right: Numbers of the columns that are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def duration(us: float) -> str:
    """Microseconds for people."""
    if us < 1_000:
        return f"{us:.0f} us"
    if us < 1_000_000:
        return f"{us / 1_000:.1f} ms"
    return f"{us / 1_000_000:.2f} s"


def size(num_bytes: int) -> str:
    """Bytes for people, exact below 10 KB."""
    if num_bytes < 10_000:
        return f"{num_bytes:,} B"
    if num_bytes < 10_000_000:
        return f"{num_bytes / 1_000:,.1f} KB"
    return f"{num_bytes / 1_000_000:,.1f} MB"


def plural(count: int, noun: str) -> str:
    """The count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
