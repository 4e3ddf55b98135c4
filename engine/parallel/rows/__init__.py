"""Which rows a rank holds, what they mean, and the moves between those states."""

from engine.parallel.rows.modes import PaddingMode, padding_mode
from engine.parallel.rows.splits import Split
from engine.parallel.rows.tags import RowRule, RowSet, TagError, TaggedRows, ValueState

__all__ = [
    "PaddingMode",
    "RowRule",
    "RowSet",
    "Split",
    "TagError",
    "TaggedRows",
    "ValueState",
    "padding_mode",
]
