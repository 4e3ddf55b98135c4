"""Which rank owns which row of an Engram table. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.parallel.errors import LayoutError

ROW_ALIGNMENT: Final = 256

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShards:
    """Rows [0, num_rows) of one table over enp ranks, in contiguous equal parts.

    Args:
        num_rows: real rows; those from there to `num_padded` are padding, never requested.
        enp: ranks that share the table.

    Raises:
        LayoutError: a size below 1.
    """

    num_rows: int
    enp: int

    def __post_init__(self) -> None:
        """Refuses sizes out of range."""
        for name in ("num_rows", "enp"):
            if getattr(self, name) < 1:
                raise LayoutError([("SIZE", f"{name} is {getattr(self, name)}, must be above 0")])

    @property
    def alignment(self) -> int:
        """What the padded number of rows is a multiple of."""
        return math.lcm(ROW_ALIGNMENT, self.enp)

    @property
    def num_padded(self) -> int:
        """Rows with padding."""
        return -(-self.num_rows // self.alignment) * self.alignment

    @property
    def num_padding(self) -> int:
        """Rows that exist only to make the parts equal."""
        return self.num_padded - self.num_rows

    @property
    def rows_per_rank(self) -> int:
        """Rows of each part."""
        return self.num_padded // self.enp

    @property
    def has_rows_everywhere(self) -> bool:
        """Whether every rank's first row is a real one."""
        return (self.enp - 1) * self.rows_per_rank < self.num_rows

    def rows_of(self, enp_rank: int) -> range:
        """Real rows of a rank."""
        first = enp_rank * self.rows_per_rank
        return range(first, min(first + self.rows_per_rank, self.num_rows))

    def place(self, row: int) -> tuple[int, int]:
        """Owner rank and local index of a row.

        Raises:
            ValueError: the row is padding or outside the table.
        """
        if not 0 <= row < self.num_rows:
            raise ValueError(
                f"row {row} is not in 0..{self.num_rows - 1}: padding rows are never requested"
            )
        return divmod(row, self.rows_per_rank)

    def places(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Owner ranks and local indices of real rows, each of the shape of `rows`."""
        owners, places = np.divmod(rows, self.rows_per_rank)
        return owners, places

    def bytes_per_rank(self, row_bytes: int) -> int:
        """Bytes of one part, padding included."""
        return self.rows_per_rank * row_bytes
