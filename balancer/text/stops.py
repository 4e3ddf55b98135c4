"""Stop strings in text that arrives in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds stop strings in text that arrives in pieces.

    Text that could be the beginning of a stop string is held back, so that no part of one is ever
    handed out. The stop string that is complete first counts, of several the longest, so the result
    does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.is_met = False

    def push(self, piece: str) -> str:
        """Returns the text that can be handed out; sets `is_met` when a stop string is complete."""
        if not self._stops:
            return piece
        text = self._held + piece
        matches = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if matches:
            self.is_met, self._held = True, ""
            _, start = min(matches)
            return text[:start]
        keep = _held_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Returns what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _held_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` with which some stop string begins."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        tail = text[len(text) - length :]
        if any(stop.startswith(tail) for stop in stops):
            return length
    return 0
