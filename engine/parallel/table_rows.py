"""Rows of sharded tables: who owns them, reading them one-sidedly, early issue and late await.

This module holds the port, how shards lie in memory, and the one-rank form, which is the meaning of
the operation. Knows no model: a table is rows of bytes, an id is a row number.

A rank that owns rows writes them once, at load. A fetch reads its owner's memory directly: the
owner takes no part, so ranks need not be in lockstep and a rank without rows need not fetch.

Invariants, for every form and every number of owners:
- A fetch copies rows, so its results are bit-equal to those of one rank.
- Id -1 means "no row": it is not read and comes back as zeros. Padding rows of a table, and rows
  behind it, are never requested: such an id is refused.
- Every fetch is awaited, all tables of it, before the next is issued.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.parallel.errors import ParallelError
from engine.parallel.layout import TableShards

# Rows are asked of their source in pieces of at most so many bytes.
PIECE_BYTES: Final = 256 << 20
_LINE_BYTES = 64

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]
# First row and number of rows to their values, [n, width], and scales, [n, scale_bytes] uint8.
RowSource = Callable[[int, int], tuple[Tensor, Tensor | None]]


class TableInputError(ParallelError, ValueError):
    """Bad arguments of a fetch or of a load; nothing was read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """One table, equal on all ranks.

    Args:
        num_rows: real rows.
        width: numbers of a row.
        dtype: of the numbers.
        scale_bytes: bytes of scales that belong to a row; 0 for none.
    """

    num_rows: int
    width: int
    dtype: torch.dtype
    scale_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuses sizes out of range."""
        for name, lowest in (("num_rows", 1), ("width", 1), ("scale_bytes", 0)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {lowest}")

    @property
    def value_bytes(self) -> int:
        """Bytes of a row's numbers."""
        return self.width * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its scales."""
        return self.value_bytes + self.scale_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMemory:
    """How the shards of some tables lie in the memory of their owners, one region per owner.

    Args:
        tables: in the order of their ids in a fetch.
        enp: owners of one copy.
    """

    tables: tuple[RowTable, ...]
    enp: int

    def shards(self, table: int) -> TableShards:
        """Who owns which row of a table."""
        return TableShards(num_rows=self.tables[table].num_rows, enp=self.enp)

    @property
    def region_bytes(self) -> int:
        """Bytes of one owner: a line that says what is loaded, then a shard of each table."""
        return self._begin(len(self.tables))

    @property
    def num_bytes(self) -> int:
        """Bytes of all owners; touched only by who writes or reads them."""
        return self.enp * self.region_bytes

    def loaded(self, memory: memoryview) -> IntArray:
        """[enp] words, 1 where an owner has written all its rows."""
        regions = self._regions(memory)
        return regions[:, :8].view(np.int64)[:, 0]

    def rows(self, memory: memoryview, table: int) -> ByteArray:
        """[enp, rows per rank, bytes of a row] of a table; a view."""
        shards, row_bytes = self.shards(table), self.tables[table].row_bytes
        begin = self._begin(table)
        shard = self._regions(memory)[:, begin : begin + shards.bytes_per_rank(row_bytes)]
        return shard.reshape(self.enp, shards.rows_per_rank, row_bytes)

    def _begin(self, table: int) -> int:
        before = _LINE_BYTES
        for number in range(table):
            size = self.shards(number).bytes_per_rank(self.tables[number].row_bytes)
            before += -(-size // _LINE_BYTES) * _LINE_BYTES
        return before

    def _regions(self, memory: memoryview) -> ByteArray:
        flat: ByteArray = np.frombuffer(memory, dtype=np.uint8, count=self.num_bytes)
        return flat.reshape(self.enp, self.region_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRows:
    """Rows of one table.

    Args:
        values: [T, E, width] of the table's dtype.
        scales: [T, E, scale_bytes] uint8, or None for tables without.
    """

    values: Tensor
    scales: Tensor | None


class PendingRows(Protocol):
    """Rows of one table on their way."""

    def wait(self) -> FetchedRows:
        """The rows; blocks until they are there. Later calls return the same."""
        ...


class TableRows(Protocol):
    """Reads rows of sharded tables. The step loop's thread calls it."""

    def start_fetch(self, ids: Sequence[Tensor]) -> list[PendingRows]:
        """Issues the reads of a step; returns at once.

        Args:
            ids: for each table [T, E] int64 row ids, -1 for none; T may be 0.

        Raises:
            TableInputError: bad arguments, or rows of the fetch before were not awaited.
        """
        ...

    def close(self) -> None:
        """Ends the reading. Twice is harmless."""
        ...


class MappedTables:
    """Tables whose owners' memory is all mapped here: that of one rank, or of the ranks of a host.

    Rows are read by a thread of its own, table by table, so that waiting for memory overlaps with
    the layers before the one that needs them.

    Args:
        layout: of the tables.
        memory: of all owners of a copy, `layout.num_bytes` long and zero at first.
        enp_rank: which owner this rank is; None if it only reads.
    """

    def __init__(
        self, layout: TableMemory, memory: memoryview, *, enp_rank: int | None = None
    ) -> None:
        """Reads nothing yet."""
        self.layout = layout
        self.enp_rank = enp_rank
        self._loaded = layout.loaded(memory)
        self._shards = [layout.shards(table) for table in range(len(layout.tables))]
        self._rows = [layout.rows(memory, table) for table in range(len(layout.tables))]
        self._is_complete = False
        self._pending: list[_Pending] = []
        self._reader: ThreadPoolExecutor | None = None

    def load(self, sources: Sequence[RowSource]) -> None:
        """Writes this owner's rows and says so; others may fetch once all owners have.

        Args:
            sources: of each table; asked for ascending pieces of the owner's real rows.

        Raises:
            TableInputError: a source gives rows of another shape or dtype, or this rank owns none.
        """
        if self.enp_rank is None:
            raise TableInputError("this rank owns no rows: load them on the ranks of the enp group")
        for table, shards, rows, source in zip(
            self.layout.tables, self._shards, self._rows, sources, strict=True
        ):
            owned = shards.rows_of(self.enp_rank)
            step = max(PIECE_BYTES // table.row_bytes, 1)
            for begin in range(owned.start, owned.stop, step):
                count = min(step, owned.stop - begin)
                place = begin - owned.start
                values, scales = source(begin, count)
                rows[self.enp_rank, place : place + count] = _as_bytes(table, values, scales, count)
        self._loaded[self.enp_rank] = 1

    def start_fetch(self, ids: Sequence[Tensor]) -> list[PendingRows]:
        """See `TableRows.start_fetch`."""
        if late := [pending.table for pending in self._pending if not pending.is_taken]:
            raise TableInputError(
                f"rows of tables {late} of the fetch before were not awaited: await all of them "
                "before the next fetch"
            )
        wanted = check_ids(ids, self.layout.tables)
        self._check_loaded()
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="table-rows")
        self._pending = [
            _Pending(table, self._reader.submit(self._read, table, rows))
            for table, rows in enumerate(wanted)
        ]
        return list(self._pending)

    def close(self) -> None:
        """See `TableRows.close`."""
        if self._reader is not None:
            self._reader.shutdown()
            self._reader = None

    def _check_loaded(self) -> None:
        if self._is_complete:
            return
        (missing,) = (self._loaded == 0).nonzero()
        if len(missing):
            raise TableInputError(
                f"owners {missing.tolist()} have not loaded their rows: let all ranks that hold "
                "rows load before the first step"
            )
        self._is_complete = True

    def _read(self, number: int, ids: IntArray) -> FetchedRows:
        table = self.layout.tables[number]
        owners, places = self._shards[number].places(ids.clip(min=0))
        rows = self._rows[number][owners, places]
        rows[ids < 0] = 0
        values = torch.empty((*ids.shape, table.width), dtype=table.dtype)
        values.view(torch.uint8).numpy()[...] = rows[..., : table.value_bytes]
        scales = None
        if table.scale_bytes:
            scales = torch.from_numpy(rows[..., table.value_bytes :].copy())
        return FetchedRows(values, scales)


def lone_tables(tables: Sequence[RowTable]) -> MappedTables:
    """Tables of one rank, which owns all rows and has loaded none yet."""
    layout = TableMemory(tables=tuple(tables), enp=1)
    return MappedTables(layout, memoryview(mmap.mmap(-1, layout.num_bytes)), enp_rank=0)


def check_ids(ids: Sequence[Tensor], tables: Sequence[RowTable]) -> list[IntArray]:
    """Checks the ids of a fetch; returns copies, so that the caller may reuse its tensors.

    Raises:
        TableInputError: names the table, what was found and what is wanted.
    """
    if len(ids) != len(tables):
        raise TableInputError(f"ids are for {len(ids)} tables, there are {len(tables)}")
    found = []
    for number, (asked, table) in enumerate(zip(ids, tables, strict=True)):
        if asked.dim() != 2 or asked.dtype is not torch.int64:
            raise TableInputError(
                f"ids of table {number} are {list(asked.shape)} {asked.dtype}, wanted [T, E] int64"
            )
        rows = asked.numpy().copy()
        if rows.size and (int(rows.min()) < -1 or int(rows.max()) >= table.num_rows):
            bad = int(rows.min()) if int(rows.min()) < -1 else int(rows.max())
            raise TableInputError(
                f"ids of table {number} hold {bad}, outside -1..{table.num_rows - 1}: padding rows "
                "are never requested"
            )
        found.append(rows)
    return found


class _Pending:
    def __init__(self, table: int, rows: Future[FetchedRows]) -> None:
        self.table = table
        self.is_taken = False
        self._rows = rows

    def wait(self) -> FetchedRows:
        self.is_taken = True
        return self._rows.result()


def _as_bytes(table: RowTable, values: Tensor, scales: Tensor | None, count: int) -> ByteArray:
    wanted = (count, table.width)
    if tuple(values.shape) != wanted or values.dtype is not table.dtype:
        raise TableInputError(
            f"rows are {list(values.shape)} {values.dtype}, wanted {list(wanted)} {table.dtype}"
        )
    parts = [values.contiguous().view(torch.uint8).numpy()]
    if table.scale_bytes:
        if scales is None or tuple(scales.shape) != (count, table.scale_bytes):
            raise TableInputError(f"rows want scales [{count}, {table.scale_bytes}] uint8")
        parts.append(scales.contiguous().view(torch.uint8).numpy())
    return np.concatenate(parts, 1)
