"""Row cuts: vectors T-U by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.rows import Split
from tests.fakes.vectors import vectors

SPLITS = vectors("splits")


@pytest.mark.parametrize("name", SPLITS)
def test_split_vector(name):
    inputs, expected = SPLITS[name]["inputs"], SPLITS[name]["expected"]
    split = Split(num_rows=inputs["rows"], num_ranks=inputs["ranks"])
    assert list(split.sizes) == expected["sizes"]
    assert list(split.offsets) == expected["offsets"]
    assert split.padded_chunk == expected["padded_chunk"]
    assert split.gathered_rows == expected["gathered_rows"]


def test_the_other_rule_is_not_ours():
    trapped = [
        name
        for name, vector in SPLITS.items()
        if vector["expected"]["ceil_chunk_sizes_not_to_use"] != vector["expected"]["sizes"]
    ]
    assert {"T-U3", "T-U7", "T-U8"} <= set(trapped)


@given(rows=st.integers(0, 200), ranks=st.integers(1, 20))
def test_chunks_are_whole_ordered_and_nearly_equal(rows, ranks):
    split = Split(num_rows=rows, num_ranks=ranks)
    assert [row for rank in range(ranks) for row in range(rows)[split.slice_of(rank)]] == list(
        range(rows)
    )
    assert max(split.sizes) - min(split.sizes) <= 1
    assert split.padded_chunk == max(split.sizes)
