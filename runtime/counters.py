"""Named counts of one process, for introspection by tests and operators.

A name is dotted words, its last part may be a cause from a bounded set (`fallback.missing_kv`); it
never holds an id. Counting is safe from any thread.
"""

import threading


class Counters:
    """Counts that only grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}

    def add(self, name: str, amount: float = 1.0) -> None:
        """Adds `amount`, at least 0, to the count `name`.

        Raises:
            ValueError: The amount is negative.
        """
        if amount < 0:
            raise ValueError(f"{name}: a count never sinks, got {amount}")
        with self._lock:
            self._values[name] = self._values.get(name, 0.0) + amount

    def value(self, name: str) -> float:
        """The count `name`; 0 if nothing was counted yet."""
        with self._lock:
            return self._values.get(name, 0.0)

    def snapshot(self) -> dict[str, float]:
        """All counts at this moment."""
        with self._lock:
            return dict(self._values)
