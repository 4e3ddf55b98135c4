"""Where the ranks stand: views, groups, channels, expert slots and table shards."""

from engine.parallel.layout.checks import AttentionShape, check_layout, require_valid
from engine.parallel.layout.notation import RunLayout, data_parallel, parse_layout
from engine.parallel.layout.ranks import Coordinates, Family, Layout
from engine.parallel.layout.runnable import check_rows, check_run, check_world, require_runnable
from engine.parallel.layout.slots import ExpertSlots
from engine.parallel.layout.tables import TableShards
from engine.parallel.layout.tensor_parallel import (
    ExpertShape,
    TensorFamily,
    TensorLayout,
    check_tensor_layout,
)
from engine.parallel.layout.views import Channel, Groups, Transport, View

__all__ = [
    "AttentionShape",
    "Channel",
    "Coordinates",
    "ExpertShape",
    "ExpertSlots",
    "Family",
    "Groups",
    "Layout",
    "RunLayout",
    "TableShards",
    "TensorFamily",
    "TensorLayout",
    "Transport",
    "View",
    "check_layout",
    "check_rows",
    "check_run",
    "check_tensor_layout",
    "check_world",
    "data_parallel",
    "parse_layout",
    "require_runnable",
    "require_valid",
]
