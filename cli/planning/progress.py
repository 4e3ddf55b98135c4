"""A progress bar on standard error: a moving line on a terminal, one line a step elsewhere."""

from __future__ import annotations

import sys

_WIDTH = 30


class Progress:
    """Shows how far named pieces of work are; writes nothing to standard output."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""

    def update(self, name: str, done: int, total: int) -> None:
        """`done` of `total` of the piece of work `name`."""
        if not self._is_terminal:
            return
        filled = _WIDTH * done // max(1, total)
        line = f"{name:<20} [{'#' * filled}{'.' * (_WIDTH - filled)}] {done:,} of {total:,}"
        sys.stderr.write("\r" + line.ljust(len(self._shown)))
        sys.stderr.flush()
        self._shown = line

    def note(self, text: str) -> None:
        """What is being done, where it is not known how much there is."""
        if self._is_terminal:
            sys.stderr.write("\r" + text.ljust(len(self._shown)))
            sys.stderr.flush()
            self._shown = text

    def finish(self, remark: str = "") -> None:
        """Ends the line; a remark stands in its place."""
        if self._shown:
            sys.stderr.write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""
        if remark:
            sys.stderr.write(remark + "\n")
        sys.stderr.flush()
