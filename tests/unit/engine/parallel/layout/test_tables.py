"""Row shards of the Engram table: vectors T-N by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.errors import LayoutError
from engine.parallel.layout import TableShards
from tests.fakes.vectors import vectors

VECTORS = {name: v for name, v in vectors("enp").items() if name.startswith("T-N")}


@pytest.mark.parametrize("name", VECTORS)
def test_table_vector(name):
    inputs, expected = dict(VECTORS[name]["inputs"]), VECTORS[name]["expected"]
    row = inputs.pop("row", None)
    shards = TableShards(num_rows=inputs["rows"], enp=inputs["enp"])
    if row is not None:
        assert shards.place(row) == (expected["rank"], expected["local"])
        return
    assert expected == {
        "align": shards.alignment,
        "padded": shards.num_padded,
        "per_rank": shards.rows_per_rank,
        "padding_rows": shards.num_padding,
    }


@pytest.mark.parametrize("name", ["table-bytes"])
def test_bytes_of_a_table_vector(name):
    vector = vectors("enp")[name]
    rows, row_bytes = vector["inputs"]["rows"], vector["inputs"]["row_bytes"]
    expected = vector["expected"]
    for enp in (8, 64):
        shards = TableShards(num_rows=rows, enp=enp)
        assert shards.bytes_per_rank(row_bytes) == expected[f"data_bytes_per_rank_enp{enp}"]
    whole = TableShards(num_rows=rows, enp=1)
    assert whole.bytes_per_rank(vector["inputs"]["scale_bytes"]) == expected["padded_scale_bytes"]
    assert rows * row_bytes == expected["data_bytes"]


@given(rows=st.integers(1, 5000), enp=st.integers(1, 40))
def test_every_real_row_has_one_owner(rows, enp):
    shards = TableShards(num_rows=rows, enp=enp)
    owned = [row for rank in range(enp) for row in shards.rows_of(rank)]
    assert owned == list(range(rows))
    assert shards.has_rows_everywhere is all(len(shards.rows_of(rank)) for rank in range(enp))
    for row in (0, rows // 2, rows - 1):
        rank, local = shards.place(row)
        assert shards.rows_of(rank)[local] == row


def test_padding_is_never_requested():
    shards = TableShards(num_rows=300, enp=2)
    with pytest.raises(ValueError, match=r"row 300 is not in 0\.\.299: padding"):
        shards.place(300)


def test_sizes_below_one_are_refused():
    with pytest.raises(LayoutError, match="enp is 0"):
        TableShards(num_rows=3, enp=0)


@given(rows=st.integers(1, 3000), enp=st.integers(1, 40), data=st.data())
def test_many_rows_have_the_places_of_each(rows, enp, data):
    shards = TableShards(num_rows=rows, enp=enp)
    asked = data.draw(st.lists(st.integers(0, rows - 1), max_size=8))
    owners, places = shards.places(np.array(asked, dtype=np.int64))
    assert list(zip(owners.tolist(), places.tolist(), strict=True)) == [
        shards.place(row) for row in asked
    ]
