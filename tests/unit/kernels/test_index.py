"""Scores and selections of the indexer against loops; ties, padding and empty inputs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disagg_kernels import select_kernels
from disagg_kernels.index import KEY_TILE
from tests.fakes.tensors import normal

OPS = select_kernels("cpu")
NEG_INF = float("-inf")


def naive_score(query: torch.Tensor, weight: torch.Tensor, key: torch.Tensor) -> float:
    dots = (query.double() @ key.double()).tolist()
    return sum(w * max(dot, 0.0) for w, dot in zip(weight.tolist(), dots, strict=True))


@pytest.mark.parametrize(
    "spans",
    [
        ((0, 0, 3), (1, 3, 6)),
        ((0, 0, 1), (1, 1, 2)),
        ((0, 0, 4), (1, 4, 5)),
    ],
    ids=["chunks", "decode", "mixed"],
)
def test_scores_are_weighted_relus_of_the_visible_keys(
    spans: tuple[tuple[int, int, int], ...],
) -> None:
    rows, heads, width = 8, 3, 5
    query, weight = normal(rows, heads, width), normal(rows, heads, seed=1)
    keys = normal(2, KEY_TILE, width, seed=2)
    visible = torch.tensor([0, 1, 2, 30, 63, 64, 7, 7])
    found = OPS.index_logits(query, weight, keys, spans, visible)
    assert found.shape == (rows, KEY_TILE)
    owner = {row: sequence for sequence, begin, end in spans for row in range(begin, end)}
    for row in range(rows):
        for key in range(KEY_TILE):
            score = float(found[row, key])
            if row not in owner or key >= int(visible[row]):
                assert score == NEG_INF
            else:
                wanted = naive_score(query[row], weight[row], keys[owner[row], key])
                assert score == pytest.approx(wanted, abs=1e-5)


def test_no_rows_and_no_sequences_are_legal() -> None:
    none = torch.empty(0, dtype=torch.int64)
    found = OPS.index_logits(normal(0, 3, 5), normal(0, 3), normal(0, KEY_TILE, 5), (), none)
    assert found.shape == (0, KEY_TILE)
    padding = torch.zeros(8, dtype=torch.int64)
    found = OPS.index_logits(normal(8, 3, 5), normal(8, 3), normal(1, KEY_TILE, 5), (), padding)
    assert (found == NEG_INF).all()


def test_wrong_arguments_are_named() -> None:
    good = {
        "query": normal(2, 3, 5),
        "weight": normal(2, 3),
        "keys": normal(1, KEY_TILE, 5),
        "spans": ((0, 0, 2),),
        "visible": torch.tensor([1, 2]),
    }
    for changed, message in (
        ({"weight": normal(3, 2)}, "weight: shape (3, 2), wanted [2, 3]"),
        ({"keys": normal(1, KEY_TILE, 4)}, "keys: shape (1, 64, 4), wanted [*, *, 5]"),
        ({"keys": normal(1, 65, 5)}, "keys: 65 keys, wanted a multiple of 64"),
        ({"visible": torch.tensor([1.0, 2.0])}, "visible: dtype torch.float32, wanted torch.int64"),
    ):
        with pytest.raises(ValueError) as caught:
            OPS.index_logits(**{**good, **changed})
        assert str(caught.value) == message
    with pytest.raises(ValueError) as caught:
        OPS.select_topk(normal(2, 8).double(), 3)
    assert str(caught.value) == "logits: dtype torch.float64, wanted torch.float32"
    with pytest.raises(ValueError) as caught:
        OPS.select_topk(normal(2, 8), 3, 2)
    assert str(caught.value) == "columns: 2, wanted at least k = 3"


def naive_picks(row: list[float], k: int) -> list[int]:
    finite = [i for i, value in enumerate(row) if value != NEG_INF]
    best = sorted(sorted(finite, key=lambda i: (-row[i], i))[:k])
    return best + [-1] * (k - len(best))


@pytest.mark.parametrize(
    ("row", "k", "picks"),
    [
        ([1.0, 3.0, 2.0], 2, [1, 2]),
        ([0.0, 0.0, 0.0, 0.0], 2, [0, 1]),
        ([0.0, 5.0, 0.0, 0.0], 3, [0, 1, 2]),
        ([-1.0, NEG_INF, -2.0, NEG_INF], 3, [0, 2, -1]),
        ([NEG_INF, NEG_INF], 2, [-1, -1]),
        ([4.0], 3, [0, -1, -1]),
        ([-0.0, 0.0], 1, [0]),
    ],
)
def test_picks_are_ascending_ties_low_padded(row: list[float], k: int, picks: list[int]) -> None:
    assert OPS.select_topk(torch.tensor([row]), k).tolist() == [picks]


@pytest.mark.medium
@given(
    rows=st.integers(1, 40).flatmap(
        lambda width: st.lists(
            st.lists(
                st.sampled_from((NEG_INF, -2.0, -1.0, 0.0, 0.5, 1.0)),
                min_size=width,
                max_size=width,
            ),
            min_size=1,
            max_size=4,
        )
    ),
    k=st.integers(1, 45),
)
def test_picks_equal_a_stable_sort(rows: list[list[float]], k: int) -> None:
    found = OPS.select_topk(torch.tensor(rows), k).tolist()
    assert found == [naive_picks(row, k) for row in rows]
    wider = OPS.select_topk(torch.tensor(rows), k, k + 3).tolist()
    assert wider == [[*naive_picks(row, k), -1, -1, -1] for row in rows]


def test_selecting_from_nothing_is_legal() -> None:
    assert OPS.select_topk(torch.empty(0, 8), 3).shape == (0, 3)
    assert OPS.select_topk(torch.empty(2, 0), 3).tolist() == [[-1] * 3] * 2
