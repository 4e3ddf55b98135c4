"""Pooling of token groups against loops over the formula (a softmax per channel)."""

import math

import pytest
import torch

from disagg_kernels import select_kernels
from tests.fakes.tensors import normal

OPS = select_kernels("cpu")


def pooled(keys: list[float], scores: list[float]) -> float:
    """The weighted mean of one channel; a score of -inf takes no part."""
    weights = [math.exp(score) for score in scores]
    return sum(w * k for w, k in zip(weights, keys, strict=True)) / sum(weights)


@pytest.mark.parametrize("tokens", [1, 3, 128])
def test_without_overlap_each_channel_is_a_softmax_over_the_group(tokens: int) -> None:
    width = 5
    rows = normal(4, tokens, 2 * width)
    found = OPS.compress(rows, width=width, overlap=False, first=None)
    for group in range(4):
        for channel in range(width):
            expected = pooled(
                rows[group, :, channel].tolist(), rows[group, :, width + channel].tolist()
            )
            assert float(found[group, channel]) == pytest.approx(expected, abs=1e-5)


def test_with_overlap_the_previous_group_gives_its_first_half_of_channels() -> None:
    width, ratio = 3, 4
    rows = normal(5, 2 * ratio, 4 * width)
    first = torch.tensor([True, False, False, True, False])
    found = OPS.compress(rows, width=width, overlap=True, first=first)
    for group in range(5):
        for channel in range(width):
            keys, scores = [], []
            if not first[group]:
                keys += rows[group, :ratio, channel].tolist()
                scores += rows[group, :ratio, 2 * width + channel].tolist()
            keys += rows[group, ratio:, width + channel].tolist()
            scores += rows[group, ratio:, 3 * width + channel].tolist()
            expected = pooled(keys, scores)
            assert float(found[group, channel]) == pytest.approx(expected, abs=1e-5)


def test_what_stands_in_place_of_a_missing_group_does_not_matter() -> None:
    rows = normal(2, 8, 12)
    other = rows.clone()
    other[:, :4] = 77.0
    first = torch.tensor([True, True])
    one = OPS.compress(rows, width=3, overlap=True, first=first)
    two = OPS.compress(other, width=3, overlap=True, first=first)
    assert torch.equal(one, two)


def test_large_scores_stay_finite() -> None:
    rows = normal(2, 4, 6)
    rows[..., 3:] = 1e4
    assert torch.isfinite(OPS.compress(rows, width=3, overlap=False, first=None)).all()


def test_no_groups_are_legal() -> None:
    none = torch.empty(0, dtype=torch.bool)
    assert OPS.compress(normal(0, 8, 12), width=3, overlap=True, first=none).shape == (0, 3)
    assert OPS.compress(normal(0, 8, 6), width=3, overlap=False, first=None).shape == (0, 3)


def test_wrong_arguments_are_named() -> None:
    for call, message in (
        (
            lambda: OPS.compress(normal(2, 8, 6), width=3, overlap=True, first=None),
            "rows: shape (2, 8, 6), wanted [*, *, 12]",
        ),
        (
            lambda: OPS.compress(normal(2, 8, 12), width=3, overlap=True, first=None),
            "first: None, wanted a [groups] bool tensor with overlap",
        ),
        (
            lambda: OPS.compress(normal(2, 8, 12), width=3, overlap=True, first=torch.zeros(2)),
            "first: dtype torch.float32, wanted torch.bool",
        ),
        (
            lambda: OPS.compress(normal(2, 8, 6).double(), width=3, overlap=False, first=None),
            "rows: dtype torch.float64, wanted torch.float32",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message
