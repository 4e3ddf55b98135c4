"""Rows of sharded tables in the memory of one process: order, refusals, early issue, late await."""

import functools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.parallel import table_rows
from engine.parallel.table_rows import (
    MappedTables,
    RowTable,
    TableInputError,
    TableMemory,
    lone_tables,
)

PLAIN = RowTable(num_rows=1000, width=6, dtype=torch.float32)
SCALED = RowTable(num_rows=777, width=64, dtype=torch.float8_e4m3fn, scale_bytes=2)


@functools.cache
def content(table: RowTable, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """All rows of a table and their scales."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(table.num_rows, table.width, generator=generator).to(table.dtype)
    scales = None
    if table.scale_bytes:
        shape = (table.num_rows, table.scale_bytes)
        scales = torch.randint(0, 256, shape, generator=generator).to(torch.uint8)
    return values, scales


def source(table: RowTable, seed: int):
    values, scales = content(table, seed)

    def rows(begin: int, count: int):
        part = slice(begin, begin + count)
        return values[part], None if scales is None else scales[part]

    return rows


SOURCES = [source(PLAIN, 1), source(SCALED, 2)]


def owners(enp: int, sources=SOURCES, load=True) -> list[MappedTables]:
    """Every owner's end, over the same memory."""
    layout = TableMemory(tables=(PLAIN, SCALED), enp=enp)
    memory = memoryview(bytearray(layout.num_bytes))
    found = [MappedTables(layout, memory, enp_rank=rank) for rank in range(enp)]
    for tables in found if load else []:
        tables.load(sources)
    return found


def check(tables: MappedTables, ids: list[torch.Tensor]) -> None:
    for pending, asked, table, seed in zip(
        tables.start_fetch(ids), ids, (PLAIN, SCALED), (1, 2), strict=True
    ):
        rows = pending.wait()
        values, scales = content(table, seed)
        expected = values.view(torch.uint8)[asked.clamp(min=0)]
        expected[asked < 0] = 0
        assert rows.values.dtype is table.dtype
        assert torch.equal(rows.values.view(torch.uint8), expected)
        if scales is None:
            assert rows.scales is None
        else:
            wanted = scales[asked.clamp(min=0)]
            wanted[asked < 0] = 0
            assert torch.equal(rows.scales, wanted)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), enp=st.sampled_from([1, 2, 3, 8]))
def test_every_owner_reads_what_one_rank_reads(data, enp):
    tables = owners(enp)
    ids = []
    for table in (PLAIN, SCALED):
        shape = data.draw(st.tuples(st.integers(0, 9), st.integers(1, 4)))
        drawn = data.draw(
            st.lists(
                st.integers(-1, table.num_rows - 1),
                min_size=shape[0] * shape[1],
                max_size=shape[0] * shape[1],
            )
        )
        ids.append(torch.tensor(drawn, dtype=torch.int64).view(shape))
    for end in tables:
        check(end, ids)
        end.close()


def test_one_rank_holds_all_rows():
    tables = lone_tables((PLAIN, SCALED))
    tables.load(SOURCES)
    check(tables, [torch.tensor([[0, 999], [-1, 512]]), torch.tensor([[776], [0]])])
    tables.close()
    tables.close()


def test_owners_are_asked_for_their_own_real_rows_in_pieces(monkeypatch):
    monkeypatch.setattr(table_rows, "PIECE_BYTES", 100 * PLAIN.row_bytes)
    asked: list[list[tuple[int, int]]] = []

    def spy(begin: int, count: int):
        asked[-1].append((begin, count))
        return SOURCES[0](begin, count)

    for tables in owners(3, load=False):
        asked.append([])
        tables.load([spy, SOURCES[1]])
    # 1000 rows over 3 owners, padded to 1536: 512 each, of which 24 of the last are padding.
    assert asked[0] == [(0, 100), (100, 100), (200, 100), (300, 100), (400, 100), (500, 12)]
    assert asked[1][-1] == (912, 88)
    assert asked[2] == []
    assert [sum(count for _, count in part) for part in asked] == [512, 488, 0]


@pytest.mark.parametrize("bad", [1000, 1023, 10**6, -2])
def test_padding_rows_are_never_requested(bad):
    (tables,) = owners(1)
    ids = [torch.tensor([[3, bad]]), torch.tensor([[0]])]
    with pytest.raises(TableInputError, match=rf"table 0 hold {bad}, outside -1\.\.999: padding"):
        tables.start_fetch(ids)
    # Nothing was issued.
    check(tables, [torch.tensor([[3]]), torch.tensor([[0]])])
    tables.close()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([torch.zeros(1, 1, dtype=torch.int64)], "ids are for 1 tables, there are 2"),
        ([torch.zeros(2, dtype=torch.int64)] * 2, r"ids of table 0 are \[2\] torch.int64, wanted"),
        ([torch.zeros(2, 1)] * 2, r"ids of table 0 are \[2, 1\] torch.float32, wanted"),
    ],
)
def test_ids_of_another_form_are_refused(ids, message):
    (tables,) = owners(1)
    with pytest.raises(TableInputError, match=message):
        tables.start_fetch(ids)


def test_rows_are_issued_early_and_awaited_late(monkeypatch):
    (tables,) = owners(1)
    may_read, reads = threading.Event(), []
    read = MappedTables._read

    def slow(self, number, ids):
        assert may_read.wait(20.0)
        reads.append(number)
        return read(self, number, ids)

    monkeypatch.setattr(MappedTables, "_read", slow)
    ids = [torch.tensor([[5]]), torch.tensor([[6]])]
    pending = tables.start_fetch(ids)
    # The issue came back before anything was read; the caller may reuse its tensor.
    assert reads == []
    ids[0][0, 0] = 7
    may_read.set()
    assert torch.equal(pending[0].wait().values[0, 0], content(PLAIN, 1)[0][5])
    assert pending[0].wait() is pending[0].wait()
    pending[1].wait()
    assert reads == [0, 1]
    tables.close()


def test_a_fetch_is_awaited_before_the_next():
    (tables,) = owners(1)
    ids = [torch.tensor([[5]]), torch.tensor([[6]])]
    first = tables.start_fetch(ids)
    first[0].wait()
    with pytest.raises(TableInputError, match=r"tables \[1\] of the fetch before"):
        tables.start_fetch(ids)
    first[1].wait()
    for pending in tables.start_fetch(ids):
        pending.wait()
    tables.close()


def test_nothing_is_read_before_all_owners_have_loaded():
    first, second = owners(2, load=False)
    first.load(SOURCES)
    ids = [torch.tensor([[5]]), torch.tensor([[6]])]
    with pytest.raises(TableInputError, match=r"owners \[1\] have not loaded"):
        first.start_fetch(ids)
    second.load(SOURCES)
    check(first, ids)
    first.close()


def test_a_reader_that_owns_nothing_loads_nothing():
    layout = TableMemory(tables=(PLAIN,), enp=1)
    reader = MappedTables(layout, memoryview(bytearray(layout.num_bytes)))
    with pytest.raises(TableInputError, match="this rank owns no rows"):
        reader.load(SOURCES[:1])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda begin, count: (torch.zeros(count, 5), None), "wanted .* torch.float32"),
        (lambda begin, count: (torch.zeros(count, 6).double(), None), "wanted .* torch.float32"),
    ],
)
def test_rows_of_another_form_are_refused(rows, message):
    with pytest.raises(TableInputError, match=message):
        lone_tables((PLAIN,)).load([rows])


def test_scales_that_are_missing_are_refused():
    with pytest.raises(TableInputError, match=r"rows want scales \[777, 2\] uint8"):
        lone_tables((SCALED,)).load([lambda begin, count: (SOURCES[1](begin, count)[0], None)])


def test_regions_of_owners_do_not_overlap_and_start_on_lines():
    layout = TableMemory(tables=(PLAIN, SCALED), enp=3)
    memory = memoryview(bytearray(layout.num_bytes))
    layout.rows(memory, 0)[:] = 1
    layout.rows(memory, 1)[:] = 2
    layout.loaded(memory)[:] = 3
    flat = np.frombuffer(memory, np.uint8)
    assert (flat == 1).sum() == 3 * 512 * PLAIN.row_bytes
    assert (flat == 2).sum() == 3 * 512 * SCALED.row_bytes
    assert (flat == 3).sum() == 3
    assert layout.region_bytes % 64 == 0


@pytest.mark.parametrize("name", ["num_rows", "width", "scale_bytes"])
def test_sizes_out_of_range_are_refused(name):
    sizes = {"num_rows": 1, "width": 1, "scale_bytes": 0, name: -1}
    with pytest.raises(ValueError, match=f"{name} is -1, must be at least"):
        RowTable(dtype=torch.float32, **sizes)
