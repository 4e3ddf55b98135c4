"""Context parallelism inside a layer: rows of all cp ranks, asked for early and taken late.

Each rank has its own rows of a step (`engine.step_rows`). A restore brings those of all ranks
together and puts them back into the step's order, so that every rank can write all KV. Rows are
only copied: what is written is what one rank alone would write, bit by bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.parallel.rows.transitions import Gather, RowGroup


class Restoring:
    """Rows of a step on their way to every rank."""

    __slots__ = ("_pending", "_reverse", "_rows")

    def __init__(
        self, rows: Tensor, reverse: Tensor | None = None, pending: Gather | None = None
    ) -> None:
        """Takes what `start_restore` found."""
        self._rows = rows
        self._reverse = reverse
        self._pending = pending

    def wait(self) -> Tensor:
        """[T, ...] rows of the step in order; the own [rows, ...] if these are all."""
        if self._pending is None or self._reverse is None:
            return self._rows
        return self._pending.wait().index_select(0, self._reverse)


def start_restore(rows: Tensor, cp: RowGroup, reverse: Tensor | None) -> Restoring:
    """Sends this rank's rows to the others; a collective of the group unless it has one rank.

    Restores are waited for in the order in which they were started.

    Args:
        rows: [rows, ...], equally many on all ranks.
        cp: who shares the step's rows.
        reverse: [T] place of each row of the step among the gathered ones; None when this rank
            has all rows, and nothing is sent.
    """
    if reverse is None:
        return Restoring(rows)
    return Restoring(rows, reverse, cp.start_all_gather(rows.contiguous()))


def serve_restore(cp: RowGroup, columns: int) -> None:
    """Takes part in a restore without rows: what all ranks of the group do in a placeholder."""
    if cp.size > 1:
        cp.all_gather(torch.empty(0, columns))
