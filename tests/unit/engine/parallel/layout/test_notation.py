"""Layouts as text: what is left out follows, and what cannot be is refused with a way out."""

import pytest

from engine.parallel.errors import LayoutError
from engine.parallel.layout import Layout, RunLayout, data_parallel, parse_layout


@pytest.mark.parametrize(
    ("text", "layout", "all_to_all"),
    [
        ("dp=4,cp=2,ep=8", Layout(dp=4, cp=2, ep=8), True),
        ("dp=4,ep=8,attn_tp=2,path=b", Layout(dp=4, ep=8, attn_tp=2), True),
        ("ep=8,attn_tp=2", Layout(dp=4, ep=8, attn_tp=2), True),
        ("dp=2,attn_tp=2,path=a", Layout(dp=2, ep=4, attn_tp=2), False),
        ("dp=2,ep=2,attn_tp=2,path=a", Layout(dp=2, ep=2, attn_tp=2), False),
        ("dp=3", Layout(dp=3, ep=3), True),
        ("cp=2", Layout(dp=1, cp=2, ep=2), True),
        ("ep=2", Layout(dp=2, ep=2), True),
        (" dp=2 , ep=2, enp=4", Layout(dp=2, ep=2, enp=4), True),
    ],
)
def test_sizes_that_are_left_out_follow(text, layout, all_to_all):
    run = parse_layout(text)
    assert run == RunLayout(layout=layout, all_to_all=all_to_all)
    assert parse_layout(str(run)) == run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp=4,tp=2", "'tp=2' is not one of dp, cp, ep, enp, attn_tp, path"),
        ("dp=2,dp=4", "dp is given twice, 2 and 4: leave one out"),
        ("path=a,dp=2,path=b", "path is given twice, a and b: leave one out"),
        ("", "'' is not one of"),
        ("dp=0", "dp needs a positive number, as in dp=4"),
        ("ep=x", "ep needs a positive number, as in ep=4"),
        ("ep", "ep needs a positive number"),
        ("dp=2,path=c", "path=c is not one of a, b"),
        ("dp=2,path=b", "path=b cuts the rows of attn_tp ranks, but attn_tp is 1: leave it out"),
    ],
)
def test_what_is_no_layout_is_refused(text, message):
    with pytest.raises(LayoutError, match=message) as caught:
        parse_layout(text)
    assert f"layout {text}:" in str(caught.value)


def test_data_parallel_ranks_share_the_experts():
    assert data_parallel(4) == parse_layout("dp=4,ep=4")
    assert str(data_parallel(1)) == "dp=1,ep=1"
    assert data_parallel(8).engine_size == 1
    assert parse_layout("dp=2,cp=4").engine_size == 4
