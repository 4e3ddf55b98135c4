"""Messages of the contracts' argument checks: the name, what came, what is wanted."""

import pytest
import torch

from disagg_kernels.checks import expect, same_device


def test_a_good_tensor_passes() -> None:
    expect(torch.zeros(2, 3), "x", (2, 3), dtype=torch.float32, contiguous=True)
    expect(torch.zeros(0, 3), "x", (None, 3))


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        (torch.zeros(2, 3), (None, 4), "x: shape (2, 3), wanted [*, 4]"),
        (torch.zeros(2, 3), (2,), "x: shape (2, 3), wanted [2]"),
        (torch.zeros(3), (3, None), "x: shape (3,), wanted [3, *]"),
        (torch.zeros(()), (1,), "x: shape (), wanted [1]"),
    ],
)
def test_a_wrong_shape_is_named(
    tensor: torch.Tensor, shape: tuple[int | None, ...], message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        expect(tensor, "x", shape)
    assert str(caught.value) == message


def test_a_wrong_dtype_is_named() -> None:
    with pytest.raises(ValueError) as caught:
        expect(torch.zeros(2, dtype=torch.float64), "x", (2,), dtype=torch.float32)
    assert str(caught.value) == "x: dtype torch.float64, wanted torch.float32"


def test_gaps_between_rows_are_named() -> None:
    with pytest.raises(ValueError) as caught:
        expect(torch.zeros(4, 3).t(), "x", (3, 4), contiguous=True)
    assert str(caught.value) == "x: strides (1, 3), wanted contiguous rows"


def test_two_devices_are_named() -> None:
    here, elsewhere = torch.zeros(1), torch.zeros(1, device="meta")
    same_device("x", here, "y", here)
    with pytest.raises(ValueError) as caught:
        same_device("x", here, "y", elsewhere)
    assert str(caught.value) == "x is on cpu, y on meta"
