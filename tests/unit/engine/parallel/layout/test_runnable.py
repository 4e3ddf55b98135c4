"""Layouts that can exist, and whether engines run them."""

import pytest

from engine.parallel.errors import LayoutError
from engine.parallel.layout import (
    AttentionShape,
    ExpertShape,
    Layout,
    RunLayout,
    check_run,
    parse_layout,
    require_runnable,
)
from engine.parallel.lockstep import EngineKind

ATTENTION = AttentionShape(num_heads=8, num_groups=4)
EXPERT = ExpertShape(intermediate=96, quantisation_block=32)


@pytest.mark.parametrize(
    "text",
    [
        "dp=8,ep=8",
        "dp=4,cp=2,ep=8",
        "dp=2,cp=4,ep=8",
        "dp=4,ep=8,attn_tp=2,path=b",
        "dp=4,ep=8,attn_tp=2,path=a",
        "dp=1,ep=1,attn_tp=3,path=a",
    ],
)
def test_a_runnable_layout(text):
    attention = AttentionShape(num_heads=24, num_groups=12)
    run = parse_layout(text)
    assert check_run(run, attention=attention, expert=EXPERT) == []
    require_runnable(run, attention=attention, expert=EXPERT)


@pytest.mark.parametrize(
    ("text", "check", "sentence"),
    [
        ("dp=2,cp=2,attn_tp=2", "PATH", "cp 2 and attn_tp 2 both decide which rows"),
        ("dp=2,cp=2,path=a", "PATH", "cp 2 and path a both decide which rows"),
        ("dp=4,ep=3", "V2", "ep 3 does not divide dp * cp = 4 * 1 = 4"),
        ("dp=2,attn_tp=8", "HEADS", "attn_tp 8 does not divide both the 8 heads and the 4 output"),
        ("dp=4,ep=1,path=a", "MOE_TP", "cuts each expert's 96 inner columns over 4 ranks"),
    ],
)
def test_what_no_engine_runs_is_said_with_a_way_out(text, check, sentence):
    run = parse_layout(text)
    found = check_run(run, attention=ATTENTION, expert=EXPERT)
    assert [name for name, _ in found] == [check]
    assert sentence in found[0][1]
    assert any(way in found[0][1] for way in ("set ", "use ", "lower "))
    with pytest.raises(LayoutError, match=check):
        require_runnable(run, attention=ATTENTION, expert=EXPERT)


def test_decode_never_splits_a_sequence():
    found = check_run(parse_layout("dp=2,cp=2"), kind=EngineKind.DECODE)
    assert [check for check, _ in found] == ["V6"]


def test_worlds_beyond_the_segment_and_store_ranks_are_refused():
    assert [check for check, _ in check_run(parse_layout("dp=1024,ep=1"))] == ["SIZE"]
    stored = RunLayout(layout=Layout(dp=2, ep=2, store_ranks=2))
    assert [check for check, _ in check_run(stored)] == ["ROLE"]
