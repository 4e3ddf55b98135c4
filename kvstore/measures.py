"""What a store client does and what servers tell of themselves, as metrics of a process."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.backends.base import Facts
from runtime.metrics import Metrics


class StoreMeasures:
    """Records operations and segments; thread-safe. See `kvstore.statistics.Observer`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def operation(self, op: str, seconds: float) -> None:
        """An operation ended, well or not."""
        self._metrics.observe("disagg_kv_op_duration_seconds", seconds, op=op)

    def written(self, component: str, outcome: str, num_segments: int, num_bytes: int) -> None:
        """Segments were offered to the store."""
        self._metrics.count(
            "disagg_kv_written_segments_total", num_segments, outcome=outcome, component=component
        )
        if outcome == "new":
            self._metrics.count("disagg_kv_written_bytes_total", num_bytes, component=component)

    def read(self, component: str, outcome: str, num_segments: int, num_bytes: int) -> None:
        """Segments were asked for."""
        self._metrics.count(
            "disagg_kv_read_segments_total", num_segments, outcome=outcome, component=component
        )
        if outcome == "ok":
            self._metrics.count("disagg_kv_read_bytes_total", num_bytes, component=component)


_DROPS = {"memory": "evicted_keys", "ttl": "expired_keys"}


class DropMeasures:
    """Counts the keys that servers drop by themselves; for one thread.

    Servers tell totals since they started. What they had dropped before the first look is not
    counted: it happened before this process, and would look like a burst. A server that is started
    anew, or whose totals were reset, begins at 0 again, and all that it tells then is new. Each is
    followed by itself, since the sum of several may fall though only one began anew.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._totals: dict[tuple[str, str], int] | None = None  # by run and cause

    def told(self, servers: Sequence[Facts]) -> None:
        """Takes the INFO of each server there is; none is fine."""
        is_first, before = self._totals is None, self._totals or {}
        found = {
            (str(facts.get("run_id", "")), cause): int(str(facts.get(name, 0)))
            for facts in servers
            for cause, name in _DROPS.items()
        }
        for (run, cause), total in found.items():
            seen = total if is_first else before.get((run, cause), 0)
            grown = total if total < seen else total - seen
            self._metrics.count("disagg_kv_evictions_total", grown, cause=cause)
        # A node that is away for one look, as in a failover, comes back with what it had.
        self._totals = before | found
