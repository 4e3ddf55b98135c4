"""What a step of rows means to the experts on each path: ids, padding, agreed counts."""

import pytest
import torch

from engine.model.expert_rows import expert_rows, pad_rows
from engine.parallel.rank_groups import RankGroups
from engine.parallel.rows.modes import AgreedRows, Combine, Path
from tests.fakes.row_groups import run_ranks

DOMAIN = {"attn_tp": [[0, 1], [2, 3]], "domain": [[0, 1, 2, 3]]}
IDS = [[11, 12, 13], [21]]


def gathered(
    counts: tuple[int, ...], *, has_extend: bool, there: tuple[int, ...] | None = None
) -> list[object]:
    """Path A on two attention groups of two ranks, with the rows announced or only some of them."""

    def work(rank, attn_tp, domain):
        part = rank // 2
        count = (there or counts)[part]
        own = torch.tensor(IDS[part][:count] + [0] * 4, dtype=torch.int64)
        return expert_rows(
            own,
            count,
            RankGroups(attn_tp=attn_tp, domain=domain, path=Path.A),
            AgreedRows(counts=counts, has_extend=has_extend),
            row_multiple=8,
        )

    return run_ranks(DOMAIN, 4, work)


def test_a_direct_step_keeps_its_ids() -> None:
    ids = torch.tensor([4, 5, 0, 0])
    step = expert_rows(ids, 2, RankGroups(), None, row_multiple=4)
    assert step.token_ids is ids
    assert (step.num_tokens, step.own.num_rows, step.is_real) == (2, 2, None)


def test_a_chunk_takes_the_ids_of_its_rows() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 0, 0, 0])

    def work(rank, attn_tp):
        groups = RankGroups(attn_tp=attn_tp, path=Path.B)
        return expert_rows(ids, 5, groups, None, row_multiple=4).token_ids.tolist()

    assert run_ranks({"attn_tp": [[0, 1]]}, 2, work) == [[1, 2, 3, 0], [4, 5, 0, 0]]


def test_context_ranks_cut_the_rows_they_all_have() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 0, 0, 0])

    def work(rank, cp):
        groups = RankGroups(cp=cp)
        whole = expert_rows(ids, 5, groups, None, row_multiple=4)
        own = expert_rows(ids, 5, groups, None, row_multiple=4, is_cut=True)
        assert (whole.inner, own.inner) == (cp, None)
        assert own.token_ids is ids
        return whole.token_ids.tolist()

    assert run_ranks({"cp": [[0, 1]]}, 2, work) == [[1, 2, 3, 0], [4, 5, 0, 0]]


def test_ids_are_gathered_by_sum() -> None:
    for step in gathered((3, 1), has_extend=True):
        assert step.token_ids.tolist() == [11, 12, 13, 21, 0, 0, 0, 0]
        assert step.is_real is None
        assert step.combine is Combine.ALL_REDUCE


def test_ids_are_gathered_in_equal_parts() -> None:
    for step in gathered((3, 1), has_extend=False):
        assert step.token_ids.tolist() == [11, 12, 13, 0, 21, 0, 0, 0]
        assert step.is_real.tolist() == [True, True, True, False, True, False, False, False]
        assert step.combine is Combine.REDUCE_SCATTER


@pytest.mark.parametrize("has_extend", [True, False])
def test_rows_that_fell_away_after_the_vote_travel_as_holes(has_extend) -> None:
    ids, real = [11, 0, 0, 21, 0, 0, 0, 0], [True, False, False, True] + [False] * 4
    if not has_extend:
        # In parts as long as the longest, which is even: two slices of two ranks.
        ids, real = [11, 0, 0, 0, 21, 0, 0, 0], [True] + [False] * 3 + [True] + [False] * 3
    for rank, step in enumerate(gathered((3, 1), has_extend=has_extend, there=(1, 1))):
        assert step.token_ids.tolist() == ids
        assert step.is_real.tolist() == real
        assert step.num_tokens == step.own.num_rows == 1
        assert step.brought.num_rows == (3, 1)[rank // 2]


def test_nobody_has_rows() -> None:
    for step in gathered((0, 0), has_extend=False):
        assert step.num_tokens == len(step.token_ids) == 0


@pytest.mark.parametrize(
    ("agreed", "message"),
    [
        (None, "path A gathers the rows of 1 attention groups: give their agreed counts"),
        ((1,), "number 0 has 2 rows: announce rows in the step vote"),
        ((2, 2), "do not fit 1 attention groups"),
    ],
)
def test_rows_that_were_not_agreed_are_refused(agreed, message) -> None:
    if agreed is not None:
        agreed = AgreedRows(counts=agreed, has_extend=False)
    with pytest.raises(ValueError, match=message):
        expert_rows(torch.tensor([1, 2]), 2, RankGroups(path=Path.A), agreed, row_multiple=8)


def test_padding_fills_up_to_a_multiple() -> None:
    rows = torch.ones(3, 2)
    assert pad_rows(rows, 4).sum(1).tolist() == [2.0, 2.0, 2.0, 0.0]
    assert pad_rows(rows, 3) is rows
    assert pad_rows(rows[:0], 4).shape == (0, 2)
