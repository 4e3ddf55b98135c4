"""How many rows each expert got in recent steps: the window that rebalancing looks at.

Pure. Counts are per logical expert, so they outlive a change of the map. Placeholder steps are not
recorded.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from engine.parallel.experts.placement import Placement

IntArray = npt.NDArray[np.int64]

DEFAULT_WINDOW_STEPS: Final = 100


class LoadWindow:
    """A ring of the last steps' counts, [steps, layers, E].

    Args:
        num_layers, num_logical: sizes of a step's counts.
        window_steps: steps that are kept.
    """

    __slots__ = ("_ring", "num_steps")

    def __init__(
        self, num_layers: int, num_logical: int, *, window_steps: int = DEFAULT_WINDOW_STEPS
    ) -> None:
        """Starts empty."""
        self._ring = np.zeros((window_steps, num_layers, num_logical), dtype=np.int64)
        self.num_steps = 0

    def add_step(self) -> None:
        """Opens a step: the oldest one is forgotten."""
        self._ring[self.num_steps % len(self._ring)] = 0
        self.num_steps += 1

    def add(self, layer: int, logical_ids: IntArray) -> None:
        """Counts the choices of one layer in the open step; -1 counts nowhere.

        Args:
            layer: index of the layer.
            logical_ids: [T, K] int64.

        Raises:
            ValueError: no step is open.
        """
        if not self.num_steps:
            raise ValueError("no step is open: call add_step before add")
        chosen = logical_ids[logical_ids >= 0]
        row = self._ring[(self.num_steps - 1) % len(self._ring), layer]
        row += np.bincount(chosen, minlength=len(row))

    def counts(self) -> IntArray:
        """The window, oldest step first: [steps, layers, E]; a copy."""
        kept = min(self.num_steps, len(self._ring))
        order = np.arange(self.num_steps - kept, self.num_steps) % len(self._ring)
        return self._ring[order]


def imbalance(loads: npt.ArrayLike, placement: Placement) -> float:
    """Sum over steps of the highest rank load, over the sum of the mean: 1 is perfect.

    Args:
        loads: [steps, E] of one layer.
        placement: map of that layer.
    """
    ranks = placement.rank_loads(np.asarray(loads, dtype=np.float64))
    mean = float(ranks.mean(-1).sum())
    return float(ranks.max(-1).sum()) / mean if mean else 1.0
