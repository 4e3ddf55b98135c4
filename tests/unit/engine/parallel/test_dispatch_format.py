"""Packed rows: exact where they can be, bounded error elsewhere, independent of neighbours."""

import pytest
import torch

from engine.parallel.dispatch import DispatchShape, LocalDispatcher
from engine.parallel.dispatch_format import (
    DispatchFormat,
    formatted,
    pack_bf16,
    pack_fp8,
    unpack_bf16,
    unpack_fp8,
)

WIDTHS = [1, 3, 64, 127, 128, 129, 300, 512]


def rows_of(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", WIDTHS)
def test_fp8_rows_are_off_by_at_most_half_a_step(width: int) -> None:
    rows = rows_of(9, width) * torch.logspace(-9, 9, 9).unsqueeze(1)
    packed = pack_fp8(rows)
    assert packed.shape == (9, DispatchFormat.FP8.row_width(width))
    found = unpack_fp8(packed, width)
    for begin in range(0, width, 128):
        part, back = rows[:, begin : begin + 128], found[:, begin : begin + 128]
        largest = part.abs().amax(1, keepdim=True)
        # Three mantissa bits: half a step is a sixteenth of the number, and of the smallest
        # normal number, 2^-6 of 448 scaled, below it.
        bound = torch.maximum(part.abs() / 16, largest / 448 * 2**-10)
        assert ((part - back).abs() <= bound * 1.0001).all()
        # The largest number of a group is met.
        place = part.abs().argmax(1, keepdim=True)
        torch.testing.assert_close(back.gather(1, place), part.gather(1, place), rtol=1e-6, atol=0)


@pytest.mark.parametrize("width", WIDTHS)
def test_bfloat16_results_are_rounded_once(width: int) -> None:
    rows = rows_of(5, width)
    packed = pack_bf16(rows)
    assert packed.shape == (5, DispatchFormat.FP8_BF16.result_width(width))
    assert torch.equal(unpack_bf16(packed, width), rows.bfloat16().float())


def test_zeros_and_tiny_numbers_become_zeros_and_damage_stays_visible() -> None:
    rows = torch.zeros(3, 256)
    rows[1, 5] = 1e-43
    rows[2, 200] = float("nan")
    found = unpack_fp8(pack_fp8(rows), 256)
    assert torch.equal(found[:2], torch.zeros(2, 256))
    assert found[2].isnan().any()
    assert torch.equal(found[2, :128], torch.zeros(128))


def test_a_row_is_packed_by_itself() -> None:
    rows = rows_of(33, 200)
    whole = pack_fp8(rows).view(torch.int32)
    for begin, end in ((0, 1), (1, 8), (8, 33)):
        assert torch.equal(pack_fp8(rows[begin:end]).view(torch.int32), whole[begin:end])
    assert pack_fp8(rows[:0]).shape == (0, DispatchFormat.FP8.row_width(200))
    assert unpack_fp8(pack_fp8(rows[:0]), 200).shape == (0, 200)


@pytest.mark.parametrize("form", DispatchFormat)
@pytest.mark.parametrize("width", [24, 130])
def test_a_formatted_dispatcher_gives_rounded_rows_and_results(
    form: DispatchFormat, width: int
) -> None:
    shape = DispatchShape(
        hidden=form.row_width(width),
        top_k=2,
        max_tokens=8,
        result_hidden=form.result_width(width),
    )
    dispatcher = formatted(LocalDispatcher(shape), form, width)
    rows = rows_of(4, width)
    ids = torch.tensor([[0, 2], [1, -1], [2, 0], [-1, -1]])
    sent = dispatcher.dispatch(rows, ids, torch.ones(4, 2), 3)
    arrived = rows if form is DispatchFormat.FLOAT32 else unpack_fp8(pack_fp8(rows), width)
    assert torch.equal(sent.rows, arrived[[0, 2, 1, 0, 2]])
    outputs = sent.rows * 1.7
    combined = dispatcher.combine(outputs, sent.handle)
    back = outputs.bfloat16().float() if form is DispatchFormat.FP8_BF16 else outputs
    assert torch.equal(combined[0], back[[0, 3]])
    assert torch.equal(combined[1], torch.stack([back[2], torch.zeros(width)]))
    assert torch.equal(combined[3], torch.zeros(2, width))


def test_float32_costs_nothing() -> None:
    dispatcher = LocalDispatcher(DispatchShape(hidden=4, top_k=1, max_tokens=1))
    assert formatted(dispatcher, DispatchFormat.FLOAT32, 4) is dispatcher


def test_bytes_of_a_row() -> None:
    """The layout notes count 5120 + 160 bytes for 5120 numbers, and 10240 back."""
    assert 4 * DispatchFormat.FP8_BF16.row_width(5120) == 5120 + 160
    assert 4 * DispatchFormat.FP8_BF16.result_width(5120) == 10240
