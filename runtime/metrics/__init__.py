"""The metrics of the project: one table, one registry in each process, one page that shows it."""

from runtime.metrics.registry import MAX_LABEL_VALUES, Metrics
from runtime.metrics.rows import Metric
from runtime.metrics.table import TABLE

__all__ = ["MAX_LABEL_VALUES", "TABLE", "Metric", "Metrics"]
