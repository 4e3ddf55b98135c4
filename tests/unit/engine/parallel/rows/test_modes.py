"""Choices of a step: padding vectors T-D by name, and the path of each layout."""

import pytest

from engine.parallel.rows import PaddingMode, padding_mode
from engine.parallel.rows.modes import (
    AgreedRows,
    Combine,
    Path,
    RowGather,
    choose_combine,
    choose_gather,
    choose_path,
)
from tests.fakes.vectors import vectors

MODES = {name: v for name, v in vectors("path_a").items() if name.startswith("T-D")}


@pytest.mark.parametrize("name", MODES)
def test_padding_mode_vector(name):
    inputs, expected = MODES[name]["inputs"], MODES[name]["expected"]
    found = padding_mode(inputs["counts"], has_extend=inputs["extend"])
    assert found is PaddingMode(expected["mode"])


@pytest.mark.parametrize(
    ("attn_dp", "attn_tp", "all_to_all", "path"),
    [
        (2, 1, False, Path.A),
        (2, 2, False, Path.A),
        (2, 2, True, Path.B),
        (1, 4, True, Path.B),
        (8, 1, True, Path.DIRECT),
        (1, 1, True, Path.DIRECT),
        (1, 4, False, Path.PLAIN),
    ],
)
def test_the_path_follows_from_widths_and_backend(attn_dp, attn_tp, all_to_all, path):
    assert choose_path(attn_dp=attn_dp, attn_tp=attn_tp, all_to_all=all_to_all) is path


@pytest.mark.parametrize("name", MODES)
def test_agreed_rows_choose_the_same_padding(name):
    inputs, expected = MODES[name]["inputs"], MODES[name]["expected"]
    agreed = AgreedRows(counts=tuple(inputs["counts"]), has_extend=inputs["extend"])
    assert agreed.padding is PaddingMode(expected["mode"])


@pytest.mark.parametrize(
    ("padding", "attn_tp", "gather"),
    [
        (PaddingMode.SUM, 1, RowGather.SIZED),
        (PaddingMode.SUM, 2, RowGather.SUMMED),
        (PaddingMode.MAX, 1, RowGather.PADDED),
        (PaddingMode.MAX, 2, RowGather.PADDED),
    ],
)
def test_the_gather_follows_from_padding_and_width(padding, attn_tp, gather):
    assert choose_gather(padding, attn_tp=attn_tp) is gather


@pytest.mark.parametrize(
    ("padding", "attn_tp", "combine"),
    [
        (PaddingMode.SUM, 1, Combine.REDUCE_SCATTER),
        (PaddingMode.SUM, 2, Combine.ALL_REDUCE),
        (PaddingMode.MAX, 1, Combine.REDUCE_SCATTER),
        (PaddingMode.MAX, 2, Combine.REDUCE_SCATTER),
    ],
)
def test_the_combine_follows_from_padding_and_width(padding, attn_tp, combine):
    assert choose_combine(padding, attn_tp=attn_tp) is combine
