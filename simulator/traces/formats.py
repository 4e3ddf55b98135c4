"""Reads public traces: Mooncake's JSON lines and Azure's CSV.

Files come from elsewhere, so every value is checked and every size is bounded. What is wrong is
said with file, line, field and value. Rows out of order are refused rather than sorted: a clock
that runs backwards is a damaged file.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from simulator.traces.trace import BLOCK_TOKENS, Trace, TraceRequest

MAX_ROWS = 5_000_000
MAX_LINE_BYTES = 1_000_000  # ids of a prompt of a hundred million tokens
MAX_TOKENS = 100_000_000
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line, field and value."""


def read_trace(path: Path, *, max_rows: int = MAX_ROWS) -> Trace:
    """Reads a trace, whichever of the known forms it has.

    Raises:
        TraceError: no such file, an unknown form, a row that cannot be, or too many rows.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.read(1)
            file.seek(0)
            if not first:
                raise TraceError(f"{path}: the file is empty; give a trace with at least one row")
            reader = _mooncake if first == "{" else _azure
            requests = list(islice(reader(path, file), max_rows + 1))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}; check --trace") from error
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{path} is not text ({error.reason} at byte {error.start}); give JSON lines or CSV"
        ) from error
    if len(requests) > max_rows:
        raise TraceError(f"{path}: more than {max_rows} rows; cut the file")
    if not requests:
        raise TraceError(f"{path}: no rows after the header; give a trace with at least one row")
    return Trace(name=path.name.split(".")[0], requests=tuple(requests))


def _lines(path: Path, file: TextIO) -> Iterator[tuple[int, str]]:
    """Numbered lines, none longer than the bound."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(f"{path} line {number}: longer than {MAX_LINE_BYTES} characters")
        yield number, line


def _mooncake(path: Path, file: TextIO) -> Iterator[TraceRequest]:
    last = 0.0
    for number, line in _lines(path, file):
        where = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TraceError(f"{where}: not JSON ({error}); each line is one object") from error
        if not isinstance(row, dict):
            raise TraceError(f"{where}: {type(row).__name__} instead of an object")
        at = row.get("timestamp")
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e15:
            raise TraceError(f"{where}: timestamp is {at!r}; milliseconds from 0 are wanted")
        if at < last:
            raise TraceError(f"{where}: timestamp {at} is before {last} of an earlier row")
        last = at
        prompt = _tokens(row.get("input_length"), "input_length", where)
        yield TraceRequest(
            at / 1000,
            prompt,
            _tokens(row.get("output_length"), "output_length", where),
            _ids(row.get("hash_ids", []), prompt, where),
        )


def _ids(found: Any, prompt: int, where: str) -> tuple[int, ...]:
    """Checked hash ids; none, or one for each begun block of the prompt."""
    if not isinstance(found, list) or not all(
        type(item) is int and item.bit_length() < 64 for item in found
    ):
        raise TraceError(f"{where}: hash_ids is {str(found)[:60]}; a list of integers is wanted")
    wanted = -(-prompt // BLOCK_TOKENS)
    if found and len(found) != wanted:
        raise TraceError(
            f"{where}: hash_ids has {len(found)} ids, but input_length {prompt} has {wanted} "
            f"blocks of {BLOCK_TOKENS} tokens"
        )
    return tuple(found)


def _azure(path: Path, file: TextIO) -> Iterator[TraceRequest]:
    rows = csv.reader(_texts(_lines(path, file)))
    header = next(rows)
    if missing := [name for name in _AZURE_COLUMNS if name not in header]:
        raise TraceError(
            f"{path} line 1: no column {missing[0]!r} in {','.join(header)[:80]!r}; JSON lines "
            f"start with an object, CSV with {','.join(_AZURE_COLUMNS)}"
        )
    columns = [header.index(name) for name in _AZURE_COLUMNS]
    start: datetime | None = None
    last = 0.0
    for number, row in enumerate(rows, start=2):
        where = f"{path} line {number}"
        if not row:
            continue
        if len(row) < len(header):
            raise TraceError(f"{where}: {len(row)} columns, the header has {len(header)}")
        stamp, prompt, output = (row[column] for column in columns)
        at = _instant(stamp, where)
        start = at if start is None else start
        if (at.tzinfo is None) != (start.tzinfo is None):
            raise TraceError(f"{where}: TIMESTAMP {stamp!r} and an earlier one differ in zone")
        seconds = (at - start).total_seconds()
        if seconds < last:
            raise TraceError(f"{where}: TIMESTAMP {stamp!r} is before that of an earlier row")
        last = seconds
        yield TraceRequest(
            seconds,
            _tokens(_number(prompt), "ContextTokens", where),
            max(1, _tokens(_number(output), "GeneratedTokens", where, lowest=0)),
        )


def _texts(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        yield line


def _instant(text: str, where: str) -> datetime:
    try:
        # Seven decimals of a second; Python reads six.
        head, dot, rest = text.partition(".")
        return datetime.fromisoformat(head + dot + rest[:6] if dot and rest.isdigit() else text)
    except ValueError:
        raise TraceError(
            f"{where}: TIMESTAMP is {text[:40]!r}; wanted like 2023-11-16 18:15:46.6805900"
        ) from None


def _number(text: str) -> int | str:
    """The number a cell holds, or the text that is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text


def _tokens(found: Any, field: str, where: str, *, lowest: int = 1) -> int:
    if type(found) is not int or not lowest <= found <= MAX_TOKENS:
        raise TraceError(
            f"{where}: {field} is {str(found)[:40]!r}; a whole number of {lowest} to {MAX_TOKENS} "
            "tokens is wanted"
        )
    return int(found)
