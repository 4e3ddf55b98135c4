"""Decides a recorded run again: the check that the simulator's balancer is the live one.

A recording is a journal of `balancer.explain.journal`, one JSON line an input of placement:
heartbeats, work handed out and taken back, ends of prefills and requests, and every decision with
its outcome. A live balancer and a simulated run write the same form. The inputs are put to fresh
objects, and the decisions are compared one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from balancer.explain.journal import Compared, JournalError, replay

MAX_LINE_CHARS = 4_000_000  # a thousand members' ids in one request's `full` are far below
MAX_LINES = 200_000_000


class RecordingError(ValueError):
    """A recording that cannot be decided again; the message names file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """What came of it.

    Args:
        decisions: How many were compared.
        equal: How many came to the same.
        first_difference: The first that did not, in one phrase; empty if all did.
    """

    decisions: int
    equal: int
    first_difference: str = ""


def replay_file(path: Path) -> Equality:
    """Replays a recording.

    Raises:
        RecordingError: it cannot be read, or not by this version.
    """
    decisions = equal = 0
    first = ""
    try:
        with path.open(encoding="utf-8") as file:
            for found in replay(_lines(file)):
                decisions += 1
                equal += found.is_equal
                if not found.is_equal and not first:
                    first = _difference(found)
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise RecordingError(f"{path} is no text: {error.reason} at byte {error.start}") from error
    except JournalError as error:
        raise RecordingError(f"{path}: {error}") from error
    if not decisions:
        raise RecordingError(f"{path} holds no decision; record a run that placed a request")
    return Equality(decisions=decisions, equal=equal, first_difference=first)


def _lines(file: TextIO) -> Iterator[str]:
    """The lines of a recording, each and all of them bounded.

    A last line without its end is left out: the process that wrote it was stopped in the middle.
    """
    number = 0
    while line := file.readline(MAX_LINE_CHARS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARS:
            raise JournalError(f"line {number} is longer than {MAX_LINE_CHARS} characters")
        if number > MAX_LINES:
            raise JournalError(f"more than {MAX_LINES} lines; cut the recording")
        if not line.startswith("{"):
            raise JournalError(f"line {number} is no JSON object")
        if line.endswith("\n"):
            yield line


def _difference(found: Compared) -> str:
    sides = [
        f"{side.verdict} {side.prefill_id or '-'} {side.decode_id or '-'}"
        for side in (found.recorded, found.replayed)
    ]
    return f"line {found.line}, request {found.request_id}: {sides[0]} became {sides[1]}"
