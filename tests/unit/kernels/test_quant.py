"""Quantisers against the named vectors and a search over all codes; the Hadamard transform."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disagg_kernels import select_kernels
from disagg_kernels.quant import FORMATS
from tests.fakes.tensors import distance, normal
from tests.fakes.vectors import vectors

OPS = select_kernels("cpu")
VECTORS = vectors("quantisers")

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# Codes in order of value: exponent 0 is subnormal, the largest is 448.
E4M3 = [m * 2.0**-9 for m in range(8)] + [
    (8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)
][:-1]


def nearest(value: float, codes: list[float]) -> float:
    """The closest code, ties to the even one, sign kept."""
    magnitude = min(abs(value), codes[-1])
    best = min(range(len(codes)), key=lambda i: (abs(codes[i] - magnitude), i % 2))
    return math.copysign(codes[best], value)


def pow2(value: float) -> float:
    mantissa, exponent = math.frexp(value)
    return 2.0 ** (exponent - 1 if mantissa == 0.5 else exponent)


def expected_block(values: list[float], fmt: str) -> list[float]:
    amax = max(map(abs, values))
    if fmt.startswith("fp8"):
        scale = pow2(max(amax, 1e-4) / 448.0)
        return [nearest(v / scale, E4M3) * scale for v in values]
    if fmt == "fp4_32":
        scale = pow2(max(amax, 6 * 2.0**-126) / 6.0)
    else:
        scale = nearest(max(amax, 6 * 2.0**-9) / 6.0, E4M3)
    return [nearest(v / scale, E2M1) * scale for v in values]


@pytest.mark.parametrize("name", ["FP4_32", "FP4_16", "FP8_32", "FP8_64"])
def test_the_vector_of_the_model_notes(name: str) -> None:
    vector = VECTORS["model-15"]
    values = vector["inputs"]["values"]
    x = torch.zeros(vector["inputs"]["padded_with_zeros_to"])
    x[: len(values)] = torch.tensor(values)
    found = OPS.quantize_dequantize(x, name.lower())
    assert found[: len(values)].tolist() == vector["expected"][name]
    assert not found[len(values) :].any()


def test_fp8_vector() -> None:
    vector = VECTORS["T-Q/fp8"]
    x = torch.zeros(vector["inputs"]["length"])
    for index, value in vector["inputs"]["nonzero"].items():
        x[int(index)] = value
    found = OPS.quantize_dequantize(x, "fp8_32")
    for index, stored in vector["expected"]["stored"].items():
        scale = vector["expected"]["scales"][int(index) // vector["inputs"]["group"]]
        assert float(found[int(index)]) == stored * scale


def test_fp4_vector() -> None:
    vector = VECTORS["T-Q/fp4"]
    # The block holds a 6, so its scale is the vector's: 1.
    x = torch.tensor(vector["inputs"]["values"] + [0.0] * 20)
    assert max(vector["inputs"]["values"]) == 6 * vector["inputs"]["scale"]
    found = OPS.quantize_dequantize(x, "fp4_32")
    assert found[:12].tolist() == vector["expected"]["stored"]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("size", [1.0, 1e-7, 1e4])
def test_every_block_is_rounded_to_the_nearest_codes(fmt: str, size: float) -> None:
    block = int(fmt.split("_")[1])
    x = normal(2, 2 * block) * size
    found = OPS.quantize_dequantize(x, fmt)
    for row in range(2):
        for begin in (0, block):
            values = x[row, begin : begin + block].tolist()
            assert found[row, begin : begin + block].tolist() == expected_block(values, fmt)


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_short_last_block_is_a_block_of_its_own(fmt: str) -> None:
    block = int(fmt.split("_")[1])
    x = normal(3, block + 5)
    x[:, :block] *= 1000.0
    found = OPS.quantize_dequantize(x, fmt)
    assert found.shape == x.shape
    for row in range(3):
        assert found[row, block:].tolist() == expected_block(x[row, block:].tolist(), fmt)


@pytest.mark.medium
@given(
    values=st.lists(
        st.floats(-1e6, 1e6, width=32).map(lambda v: v if abs(v) > 1e-30 else 0.0),
        min_size=1,
        max_size=70,
    ),
    fmt=st.sampled_from(("fp8_64", "fp8_32", "fp4_32")),
)
def test_rounding_twice_is_rounding_once(values: list[float], fmt: str) -> None:
    once = OPS.quantize_dequantize(torch.tensor(values), fmt)
    assert torch.equal(OPS.quantize_dequantize(once, fmt), once)


@pytest.mark.parametrize("fmt", FORMATS)
def test_zeros_stay_zeros_and_no_rows_are_legal(fmt: str) -> None:
    assert not OPS.quantize_dequantize(torch.zeros(2, 70), fmt).any()
    assert OPS.quantize_dequantize(torch.zeros(0, 70), fmt).shape == (0, 70)
    assert OPS.quantize_dequantize(torch.zeros(0, 3, 64), fmt).shape == (0, 3, 64)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ValueError) as caught:
        OPS.quantize_dequantize(torch.zeros(64), "int8_64")
    assert str(caught.value) == "fmt: 'int8_64', wanted one of fp8_64, fp8_32, fp4_32, fp4_16"


@pytest.mark.parametrize("width", [1, 2, 16, 128])
def test_hadamard_is_the_walsh_matrix_in_natural_order(width: int) -> None:
    matrix = torch.tensor(
        [[(-1.0) ** (i & j).bit_count() for j in range(width)] for i in range(width)]
    )
    x = normal(3, 2, width)
    expected = x.double() @ matrix.double() * width**-0.5
    found = OPS.hadamard(x)
    assert distance(found, expected) < 1e-5
    assert distance(OPS.hadamard(found), x) < 1e-5


def test_hadamard_edges() -> None:
    assert OPS.hadamard(torch.zeros(0, 4, 32)).shape == (0, 4, 32)
    with pytest.raises(ValueError) as caught:
        OPS.hadamard(torch.zeros(2, 24))
    assert str(caught.value) == "x: width 24, wanted a power of two"
