"""What a store client does, as metrics of its process."""

from __future__ import annotations

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
