"""A recording of placement on its way to a file: bounded, off the event loop, honest about gaps.

Lines are handed over in memory and written by a thread. When they come faster than the disk takes
them, or the file has reached its size, or the disk is full, lines are dropped and counted, and the
next line that can be written says how many are missing: such a recording cannot be replayed beyond
that point, and whoever replays it is told so.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from balancer.explain.journal import gap_line
from runtime.logging import get_logger

_log = get_logger(__name__)

_MAX_LINES = 1 << 16  # in memory, some ten megabytes
_STOP_S = 5.0


class RecordingError(Exception):
    """The file cannot be made; the message names it."""


class Recording:
    """Writes lines; `write` belongs to one event loop and never waits.

    Args:
        file: Where to; written and flushed by the thread alone.
        max_bytes: Size at which nothing more is written.
        on_drop: Called for each line that is dropped, from the caller of `write`.
    """

    def __init__(
        self,
        file: TextIO,
        *,
        max_bytes: int,
        on_drop: Callable[[], None],
        max_lines: int = _MAX_LINES,
    ) -> None:
        self._file = file
        self._left = max_bytes
        self._on_drop = on_drop
        self._queue: queue.Queue[str | None] = queue.Queue(max_lines)
        self._dropped = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)

    def write(self, line: str) -> None:
        """Takes one line without its end."""
        wanted = [gap_line(self._dropped), line] if self._dropped else [line]
        size = sum(len(text) + 1 for text in wanted)
        if size > self._left:
            self._left = 0  # also for a shorter line that comes later
        elif not self._is_over:
            try:
                self._queue.put_nowait("\n".join(wanted))
            except queue.Full:
                pass
            else:
                self._dropped = 0
                self._left -= size
                return
        self._dropped += 1
        self._on_drop()

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left, in bounded time."""
        if self._dropped:
            # In the room that is kept for it; a full queue gets some time.
            self._put_last(gap_line(self._dropped))
        self._put_last(None)
        self._thread.join(_STOP_S)

    def _put_last(self, item: str | None) -> None:
        try:
            self._queue.put(item, timeout=_STOP_S)
        except queue.Full:
            _log.warning("recording.unfinished")

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            if self._is_over:
                continue
            try:
                self._file.write(line + "\n")
                if self._queue.empty():
                    self._file.flush()
            except (OSError, ValueError) as error:  # closed while it was still busy
                self._is_over = True
                _log.error("recording.failed", error=str(error))


@contextmanager
def recording(
    path: Path, *, max_bytes: int, on_drop: Callable[[], None]
) -> Iterator[Callable[[str], None]]:
    """A recording in a new file while the body runs; yields what takes its lines.

    Raises:
        RecordingError: The file exists already or cannot be made.
    """
    try:
        file = path.open("x", encoding="ascii")
    except FileExistsError as error:
        raise RecordingError(
            f"routing.record_path: {path} exists already; name a new file"
        ) from error
    except OSError as error:
        raise RecordingError(
            f"routing.record_path: {path} cannot be written: {error.strerror}"
        ) from error
    with file:
        made = Recording(file, max_bytes=max_bytes, on_drop=on_drop)
        made.start()
        try:
            yield made.write
        finally:
            made.stop()
