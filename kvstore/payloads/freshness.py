"""Which payloads need no command to live longer: decisions over names and a clock's reading."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence

from kvstore.keys import Component
from kvstore.payloads.sealing import PayloadRef


class Refreshed:
    """Names whose life was set lately, so that setting it again would change nothing. Thread-safe.

    Args:
        refresh_s: How long that counts as lately.
    """

    _MAX_REMEMBERED = 1 << 16

    def __init__(self, refresh_s: float) -> None:
        self._refresh_s = refresh_s
        self._lock = threading.Lock()
        self._at: OrderedDict[tuple[Component, bytes], float] = OrderedDict()

    def take_due(self, refs: Sequence[PayloadRef], now: float) -> list[PayloadRef]:
        """The payloads whose last refresh is too old; they count as refreshed now."""
        with self._lock:
            due = [
                ref
                for ref in refs
                if now - self._at.get((ref.component, ref.name), -math.inf) >= self._refresh_s
            ]
        self.note(due, now)
        return due

    def note(self, refs: Sequence[PayloadRef], now: float) -> None:
        """Payloads whose life was set now."""
        with self._lock:
            for ref in refs:
                name = (ref.component, ref.name)
                self._at[name] = now
                self._at.move_to_end(name)
            while len(self._at) > self._MAX_REMEMBERED:
                self._at.popitem(last=False)
