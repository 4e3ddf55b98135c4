"""Restores of rows over context ranks that are threads."""

import torch

from engine.model.context import serve_restore, start_restore
from engine.parallel.rank_groups import LoneGroup
from tests.fakes.row_groups import run_ranks


def test_rows_of_all_ranks_come_back_in_order() -> None:
    reverse = torch.tensor([0, 2, 3, 1])

    def work(rank, cp):
        rows = (torch.arange(4.0).view(2, 2) + 10 * rank)[:, :1]
        assert not rows.is_contiguous()
        return start_restore(rows, cp, reverse).wait()

    for found in run_ranks({"cp": [[0, 1]]}, 2, work):
        assert found.tolist() == [[0.0], [10.0], [12.0], [2.0]]


def test_two_restores_may_be_under_way() -> None:
    def work(rank, cp):
        reverse = torch.tensor([1, 0])
        first = start_restore(torch.full((1, 3), float(rank)), cp, reverse)
        second = start_restore(torch.full((1, 1), 5.0 + rank), cp, reverse)
        return first.wait()[:, 0].tolist(), second.wait()[:, 0].tolist()

    assert run_ranks({"cp": [[0, 1]]}, 2, work) == [([1.0, 0.0], [6.0, 5.0])] * 2


def test_a_rank_that_has_all_rows_sends_nothing() -> None:
    rows = torch.arange(6.0).view(3, 2)

    def work(rank, cp):
        assert start_restore(rows, cp, None).wait() is rows
        return cp.log

    assert run_ranks({"cp": [[0, 1]]}, 2, work) == [[], []]


def test_a_placeholder_takes_part_without_rows() -> None:
    def work(rank, cp):
        serve_restore(cp, 5)
        return cp.log

    assert run_ranks({"cp": [[0, 1]]}, 2, work) == [[("all_gather", 0)]] * 2
    serve_restore(LoneGroup("cp"), 5)
