"""Context split: vectors T-Z and T-K by name, and properties for any lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.rows.zigzag import (
    block_multiple_before_gather,
    key_windows,
    shortest_split_of,
    split_rows,
)
from tests.fakes.vectors import vectors

ZIGZAG = vectors("zigzag")
WINDOWS = vectors("ks_ke")
BEFORE_GATHER = {"T-K5": WINDOWS.pop("T-K5")}
LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=6)


def keys_per_rank(split):
    """Keys that the queries of each rank see in one causal sequence."""
    return [int((rows[rows >= 0] + 1).sum()) for rows in split.mirror]


@pytest.mark.parametrize("name", [n for n, v in ZIGZAG.items() if "q_lens" in v["inputs"]])
def test_zigzag_vector(name):
    inputs, expected = ZIGZAG[name]["inputs"], ZIGZAG[name]["expected"]
    split = split_rows(inputs["q_lens"], inputs["cp"])
    assert split.mirror_length == expected["mirror_length"]
    assert split.mirror.tolist() == expected["mirror"]
    assert split.reverse.tolist() == expected["reverse"]


@pytest.mark.parametrize("name", [n for n, v in ZIGZAG.items() if "length" in v["inputs"]])
def test_balance_vector(name):
    inputs, expected = ZIGZAG[name]["inputs"], ZIGZAG[name]["expected"]
    length, cp = inputs["length"], inputs["cp"]
    split = split_rows([length], cp)
    assert split.mirror_length == 2 * expected["block"]
    assert keys_per_rank(split) == expected["keys_per_rank"]
    if expected["keys_per_rank_contiguous"] is not None:
        parts = np.arange(1, length + 1).reshape(cp, -1)
        assert parts.sum(1).tolist() == expected["keys_per_rank_contiguous"]


@pytest.mark.parametrize("name", WINDOWS)
def test_key_window_vector(name):
    inputs, expected = WINDOWS[name]["inputs"], WINDOWS[name]["expected"]
    split = split_rows(inputs["q_lens"], inputs["cp"])
    windows = key_windows(split, inputs["q_lens"], inputs["k_lens"], inputs["ratio"])
    assert windows.starts.tolist() == expected["ks"]
    assert windows.ends.tolist() == expected["ke"]


@pytest.mark.parametrize("name", ["T-K5"])
def test_window_before_gather_vector(name):
    inputs, expected = BEFORE_GATHER[name]["inputs"], BEFORE_GATHER[name]["expected"]
    multiple = block_multiple_before_gather([0, inputs["ratio"], 1])
    for after, found in (
        ("compress_after_gather", split_rows(inputs["q_lens"], inputs["cp"])),
        (
            "compress_before_gather",
            split_rows(inputs["q_lens"], inputs["cp"], block_multiple=multiple),
        ),
    ):
        assert found.mirror_length == expected[after]["mirror_length"]
        assert found.mirror.tolist() == expected[after]["mirror"]
        assert found.reverse.tolist() == expected[after]["reverse"]


@given(lengths=LENGTHS, cp=st.sampled_from([1, 2, 4, 8]), bound=st.sampled_from([0, 7, 33]))
def test_every_token_stands_once_and_the_gather_restores_the_order(lengths, cp, bound):
    split = split_rows(lengths, cp, shortest_split=bound)
    assert split.mirror.shape == (cp, len(split.sequences))
    rows = split.mirror[split.mirror >= 0]
    assert sorted(rows.tolist()) == list(range(sum(lengths)))
    gathered = split.mirror.reshape(-1)
    assert gathered[split.reverse].tolist() == list(range(sum(lengths)))


@given(lengths=LENGTHS, cp=st.sampled_from([2, 4, 8]))
def test_padding_stands_at_block_tails_only(lengths, cp):
    mirror = split_rows(lengths, cp).mirror
    begin = 0
    for length in lengths:
        block = -(-length // (2 * cp))
        halves = mirror[:, begin : begin + 2 * block].reshape(2 * cp, -1)
        assert (np.diff((halves >= 0).astype(int), axis=1) <= 0).all()
        begin += 2 * block
    assert begin == mirror.shape[1]


@given(
    lengths=LENGTHS,
    prefixes=st.lists(st.integers(0, 40), min_size=6, max_size=6),
    cp=st.sampled_from([1, 2, 4]),
    ratio=st.sampled_from([1, 2, 4]),
    bound=st.sampled_from([0, 9, 100]),
)
def test_windows_are_those_of_an_unsplit_step(lengths, prefixes, cp, ratio, bound):
    k_lens = [q + prefix for q, prefix in zip(lengths, prefixes, strict=False)]
    split = split_rows(lengths, cp, shortest_split=bound)
    windows = key_windows(split, lengths, k_lens, ratio)
    expected = {}
    base = row = 0
    for q, k in zip(lengths, k_lens, strict=True):
        for token in range(q):
            expected[row] = (base, base + (k - q + token + 1) // ratio)
            row += 1
        base += max(1, k // ratio)
    for slot, found in enumerate(split.mirror.reshape(-1).tolist()):
        window = windows.starts.reshape(-1)[slot], windows.ends.reshape(-1)[slot]
        if found >= 0:
            assert window == expected[found]
        else:
            assert window[0] == window[1]


def test_short_sequences_stay_whole_where_fewest_rows_are():
    # T-M4: 64 one-token sequences over 8 ranks cost 128 slots each when split.
    assert split_rows([1] * 64, 8).mirror_length == 128
    split = split_rows([1] * 64, 8, shortest_split=shortest_split_of(8))
    assert split.mirror_length == 8
    assert (split.mirror >= 0).all()
    mixed = split_rows([70, 5, 3], 2, shortest_split=shortest_split_of(2))
    assert (mixed.mirror >= 0).sum(1).tolist() == [39, 39]
    assert mixed.mirror[0, -5:].tolist() == [70, 71, 72, 73, 74]
    assert mixed.mirror[1, -5:].tolist() == [75, 76, 77, -1, -1]
    assert shortest_split_of(1) == 0


def test_impossible_input_is_refused():
    with pytest.raises(ValueError, match="cp 0"):
        split_rows([1], 0)
    with pytest.raises(ValueError, match=r"\[3, -1\]"):
        split_rows([3, -1], 2)
