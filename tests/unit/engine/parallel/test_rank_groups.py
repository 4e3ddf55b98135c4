"""Groups of one rank move nothing."""

import pytest
import torch

from engine.parallel.rank_groups import LoneGroup, RankGroups
from engine.parallel.rows.modes import Path


def test_collectives_of_one_rank_give_the_rows_back() -> None:
    group = LoneGroup("cp")
    rows = torch.arange(6.0).view(3, 2)
    assert torch.equal(group.all_reduce(rows), rows)
    assert torch.equal(group.all_gather(rows), rows)
    assert torch.equal(group.reduce_scatter(rows, [3]), rows)
    assert torch.equal(group.all_gather_sized(rows, [3]), rows)


def test_a_split_for_more_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"3 rows do not split into \[2, 1\] for 1"):
        LoneGroup("cp").reduce_scatter(torch.zeros(3, 2), [2, 1])
    with pytest.raises(ValueError, match=r"3 rows are not the 2 of member 0 in \[2\]: agree"):
        LoneGroup("cp").all_gather_sized(torch.zeros(3, 2), [2])


def test_without_a_layout_every_group_is_one_rank() -> None:
    groups = RankGroups()
    assert (groups.cp.size, groups.attn_tp.size, groups.domain.size) == (1, 1, 1)
    assert groups.path is Path.DIRECT


def test_the_domain_is_cut_into_experts_and_inner_width() -> None:
    domain = wide("domain", 8)
    assert RankGroups(domain=domain, path=Path.A, moe_ep=4).moe_tp == 2
    with pytest.raises(ValueError, match="moe_ep 3 does not divide the domain of 8 ranks"):
        RankGroups(domain=domain, path=Path.A, moe_ep=3)


def test_a_gather_of_one_rank_is_over_at_once() -> None:
    rows = torch.arange(4.0).view(2, 2)
    assert torch.equal(LoneGroup("cp").start_all_gather(rows).wait(), rows)


def wide(name: str, size: int) -> LoneGroup:
    group = LoneGroup(name)
    group.size = size
    return group


@pytest.mark.parametrize(
    ("path", "cp", "attn_tp", "domain", "message"),
    [
        (Path.DIRECT, 1, 2, 4, "path direct would dispatch every row attn_tp times"),
        (Path.B, 2, 2, 4, "path b and cp would both cut rows"),
        (Path.A, 2, 1, 4, "path a wants cp 1"),
        (Path.A, 1, 3, 4, "path a wants cp 1 and a domain of whole attention groups"),
        (Path.PLAIN, 1, 2, 4, "not cp 1, attn_tp 2, domain 4"),
    ],
)
def test_groups_that_do_not_fit_their_path_are_refused(path, cp, attn_tp, domain, message) -> None:
    with pytest.raises(ValueError, match=message):
        RankGroups(
            cp=wide("cp", cp),
            attn_tp=wide("attn_tp", attn_tp),
            domain=wide("domain", domain),
            path=path,
        )
