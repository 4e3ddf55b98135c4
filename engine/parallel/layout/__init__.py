"""Where the ranks stand: views, groups, channels, expert slots and table shards."""

from engine.parallel.layout.checks import AttentionShape, check_layout, require_valid
from engine.parallel.layout.ranks import Coordinates, Family, Layout
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
    "TableShards",
    "TensorFamily",
    "TensorLayout",
    "Transport",
    "View",
    "check_layout",
    "check_tensor_layout",
    "require_valid",
]
