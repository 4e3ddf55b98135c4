"""Messages of the checks: both values, and a way out that works."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.errors import LayoutError
from engine.parallel.layout import AttentionShape, ExpertSlots, Layout, check_layout, require_valid
from engine.parallel.lockstep import EngineKind

V41 = AttentionShape(num_heads=64, num_groups=8)


@pytest.mark.parametrize(
    ("layout", "known", "check", "words"),
    [
        (Layout(dp=3, enp=4), {}, "V1", ("enp 4", "3 * 1", "divisor or a multiple of 3")),
        (
            Layout(dp=2, enp=3, store_ranks=2),
            {},
            "V1",
            ("enp 3", "2 store ranks", "set enp to 2", "or 4"),
        ),
        (Layout(dp=2, ep=4), {}, "V2", ("ep 4", "2 * 1", "multiple of 4")),
        (
            Layout(dp=2, ep=2),
            {"experts": ExpertSlots(num_logical=6, ep=3)},
            "V4",
            ("ep 3", "ep 2", "lay the slots out"),
        ),
        (
            Layout(dp=4, ep=4),
            {"experts": ExpertSlots(num_logical=6, ep=4, min_redundant=19)},
            "SLOTS",
            ("min_redundant 19", "18 with which each of the 6", "all 4 ranks", "give 18 or less"),
        ),
        (Layout(dp=1, cp=16), {"ranks_per_node": 8}, "V5", ("cp 16", "8 ranks", "lower cp")),
        (Layout(cp=2, dp=1), {"kind": EngineKind.DECODE}, "V6", ("cp 2", "decode", "cp to 1")),
        (Layout(dp=8, enp=8), {"engram_rows": [300]}, "V7", ("enp 8", "300", "lower enp")),
        (Layout(dp=4, cp=2), {"engine_rank": 4}, "V8", ("engine_rank 4", "0..3", "4 engines")),
        (
            Layout(attn_tp=16),
            {"attention": V41},
            "HEADS",
            ("attn_tp 16", "64 heads", "8 output groups", "1, 2, 4, 8"),
        ),
    ],
)
def test_a_violated_check_names_both_values_and_a_way_out(layout, known, check, words):
    with pytest.raises(LayoutError) as caught:
        require_valid(layout, **known)

    assert [name for name, _ in caught.value.violations] == [check]
    for word in words:
        assert word in str(caught.value)


def test_the_way_out_of_v7_is_valid():
    layout = Layout(dp=8, enp=8)
    (_, sentence), *_ = check_layout(layout, engram_rows=[300])
    enp = int(sentence.rsplit(" ", 1)[1])
    assert not [c for c, _ in check_layout(Layout(dp=8, enp=enp), engram_rows=[300]) if c == "V7"]


@given(
    dp=st.integers(1, 12), cp=st.integers(1, 6), ep=st.integers(1, 24), attn_tp=st.integers(1, 4)
)
def test_the_ways_out_of_v2_are_valid(dp, cp, ep, attn_tp):
    layout = Layout(dp=dp, cp=cp, ep=ep, attn_tp=attn_tp)
    sentences = [text for check, text in check_layout(layout) if check == "V2"]
    for sentence in sentences:
        multiple = int(re.search(r"multiple of (\d+)", sentence)[1])
        assert check_layout(dataclasses.replace(layout, dp=multiple, enp=0)) == []
        assert check_layout(dataclasses.replace(layout, ep=1)) == []


def test_everything_wrong_is_said_at_once():
    layout = Layout(dp=3, ep=4, enp=4, cp=1)
    found = check_layout(layout, engine_rank=9, experts=ExpertSlots(num_logical=8, ep=2))
    assert [check for check, _ in found] == ["V1", "V2", "V8", "V4"]


def test_widths_of_released_models():
    assert V41.widths == (1, 2, 4, 8)
    assert AttentionShape(num_heads=128, num_groups=16).widths == (1, 2, 4, 8, 16)
