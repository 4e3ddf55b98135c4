"""Norms, rotations and linear maps against their formulas in float64."""

import math

import pytest
import torch

from disagg_kernels import select_kernels
from tests.fakes.tensors import distance, normal

OPS = select_kernels("cpu")


@pytest.mark.parametrize("eps", [1e-6, 1e-20, 0.5])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_is_its_formula(eps: float, weighted: bool) -> None:
    x = normal(5, 12)
    weight = normal(12, seed=1) if weighted else None
    found = OPS.rms_norm(x, weight, eps)
    for row, values in zip(found.tolist(), x.double().tolist(), strict=True):
        scale = 1.0 / math.sqrt(sum(v * v for v in values) / len(values) + eps)
        factors = [1.0] * 12 if weight is None else weight.tolist()
        expected = [w * v * scale for w, v in zip(factors, values, strict=True)]
        assert row == pytest.approx(expected, abs=2e-6)


def test_rms_norm_keeps_shape_and_dtype_and_rounds_once() -> None:
    x = normal(3, 2, 8).bfloat16()
    weight = normal(8, seed=1)
    found = OPS.rms_norm(x, weight, 1e-6)
    assert found.shape == x.shape
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, OPS.rms_norm(x.float(), weight, 1e-6).bfloat16())


def test_rms_norm_leaves_its_argument_alone() -> None:
    x = normal(3, 8)
    before = x.clone()
    OPS.rms_norm(x, normal(8), 1e-6)
    assert torch.equal(x, before)


def test_rope_turns_adjacent_pairs_of_the_last_channels() -> None:
    angles = [[0.0, 0.0, 0.0], [0.3, -1.2, 2.5], [100.0, 7.0, 0.01]]
    rotation = torch.polar(torch.ones(3, 3), torch.tensor(angles))
    x = normal(3, 2, 10)
    before = x.clone()
    found = OPS.apply_rope(x, rotation)
    assert found is x
    assert torch.equal(x[..., :4], before[..., :4])
    assert torch.equal(x[0], before[0])
    for row in range(3):
        for head in range(2):
            for pair in range(3):
                a, b = before[row, head, 4 + 2 * pair : 6 + 2 * pair].double().tolist()
                cos, sin = math.cos(angles[row][pair]), math.sin(angles[row][pair])
                expected = [a * cos - b * sin, a * sin + b * cos]
                turned = x[row, head, 4 + 2 * pair : 6 + 2 * pair].tolist()
                assert turned == pytest.approx(expected, abs=2e-6)


def test_the_conjugate_rotation_turns_back() -> None:
    rotation = torch.polar(torch.ones(4, 3), normal(4, 3))
    x = normal(4, 2, 8)
    before = x.clone()
    OPS.apply_rope(OPS.apply_rope(x, rotation), rotation.conj())
    assert distance(x, before) < 1e-6


@pytest.mark.parametrize("inner", [1, 24, 512, 513, 1500])
def test_linear_is_a_product(inner: int) -> None:
    x, weight = normal(8, inner), normal(inner, 6, seed=1)
    expected = x.double() @ weight.double()
    assert distance(OPS.linear(x, weight), expected) < 2e-4


def test_linear_rows_do_not_depend_on_their_number() -> None:
    x, weight = normal(64, 1100), normal(1100, 40, seed=1)
    whole = OPS.linear(x, weight)
    for rows in (8, 16, 40):
        assert torch.equal(OPS.linear(x[:rows].contiguous(), weight), whole[:rows])


@pytest.mark.parametrize("inner", [16, 700])
def test_group_linear_maps_each_group_with_its_own_weight(inner: int) -> None:
    x, weight = normal(5, 3, inner), normal(3, inner, 4, seed=1)
    found = OPS.group_linear(x, weight)
    assert found.shape == (5, 3, 4)
    for group in range(3):
        expected = x[:, group].double() @ weight[group].double()
        assert distance(found[:, group], expected) < 2e-4


def test_no_rows_are_legal() -> None:
    assert OPS.rms_norm(normal(0, 8), normal(8), 1e-6).shape == (0, 8)
    assert OPS.rms_norm(normal(0, 2, 8), None, 1e-6).shape == (0, 2, 8)
    assert OPS.apply_rope(normal(0, 2, 8), torch.ones(0, 3).to(torch.complex64)).shape == (0, 2, 8)
    assert OPS.linear(normal(0, 8), normal(8, 5)).shape == (0, 5)
    assert OPS.linear(normal(0, 600), normal(600, 5)).shape == (0, 5)
    assert OPS.group_linear(normal(0, 2, 8), normal(2, 8, 5)).shape == (0, 2, 5)


def test_wrong_arguments_are_named() -> None:
    for call, message in (
        (lambda: OPS.rms_norm(normal(2, 8), normal(7), 1e-6), "weight: shape (7,), wanted [8]"),
        (lambda: OPS.linear(normal(2, 8), normal(7, 3)), "x: shape (2, 8), wanted [*, 7]"),
        (
            lambda: OPS.apply_rope(normal(2, 8), torch.ones(2, 3).to(torch.complex64)),
            "x: shape (2, 8), wanted [2, *, *]",
        ),
        (
            lambda: OPS.apply_rope(normal(2, 1, 8), normal(2, 3)),
            "rotation: dtype torch.float32, wanted torch.complex64",
        ),
        (
            lambda: OPS.group_linear(normal(2, 3, 8), normal(2, 8, 5)),
            "x: shape (2, 3, 8), wanted [*, 2, 8]",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == message
