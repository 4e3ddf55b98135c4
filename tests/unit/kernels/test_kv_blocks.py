"""Gathering rows: copies, of any shape of index."""

import pytest
import torch

from disagg_kernels import select_kernels

OPS = select_kernels("cpu")


def test_rows_are_copies_in_the_shape_of_the_index() -> None:
    source = torch.arange(12.0).view(6, 2)
    rows = torch.tensor([[5, 0, 0], [2, 2, 4]])
    found = OPS.gather_rows(source, rows)
    assert found.tolist() == [[source[i].tolist() for i in line] for line in rows.tolist()]
    found.zero_()
    assert source[5].tolist() == [10.0, 11.0]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_no_rows_are_legal(shape: tuple[int, ...]) -> None:
    rows = torch.empty(shape, dtype=torch.int64)
    assert OPS.gather_rows(torch.zeros(6, 2), rows).shape == (*shape, 2)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError) as caught:
        OPS.gather_rows(torch.zeros(6, 2), torch.zeros(3, dtype=torch.int32))
    assert str(caught.value) == "rows: dtype torch.int32, wanted torch.int64"
    with pytest.raises(ValueError) as caught:
        OPS.gather_rows(torch.zeros(6), torch.zeros(3, dtype=torch.int64))
    assert str(caught.value) == "source: shape (6,), wanted [*, *]"
