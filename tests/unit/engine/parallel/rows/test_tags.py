"""Tags: what a row set says, and when a tensor contradicts it."""

import pytest
import torch

from engine.parallel.rows import RowRule, RowSet, TagError, TaggedRows, ValueState


def test_own_rows_are_one_part_of_the_agreed_counts():
    rows = RowSet.own([3, 0, 2], 2)
    assert (rows.num_rows, rows.num_real, rows.is_real) == (2, 2, (True, True))
    assert RowSet.own([3, 0, 2], 1).num_rows == 0


def test_padding_stands_at_the_tail_of_each_part():
    rows = RowSet(rule=RowRule.GLOBAL, counts=(1, 2), slots=(2, 2))
    assert (rows.num_rows, rows.num_real) == (4, 3)
    assert rows.offsets == (0, 2)
    assert rows.is_real == (True, False, True, True)


@pytest.mark.parametrize(
    ("counts", "slots", "part", "words"),
    [
        ((3,), (2,), 0, "counts"),
        ((1, 1), (1,), 0, "counts"),
        ((-1,), (1,), 0, "counts"),
        ((1,), (1,), 1, r"part 1 is not in 0\.\.0"),
    ],
)
def test_impossible_row_sets_are_refused(counts, slots, part, words):
    with pytest.raises(ValueError, match=words):
        RowSet(rule=RowRule.OWN, counts=counts, slots=slots, part=part)


def test_a_tensor_with_other_rows_is_refused():
    with pytest.raises(TagError, match="2 rows are tagged own with 3 rows"):
        TaggedRows(values=torch.zeros(2, 1), rows=RowSet.own([3], 0), states={})


def test_a_state_is_required_by_name():
    rows = TaggedRows(
        values=torch.zeros(3, 1), rows=RowSet.own([3], 0), states={"tp": ValueState.REP}
    )
    rows.require("tp", ValueState.REP, "cut")
    with pytest.raises(TagError, match=r"reduce_own over tp wants partial values.*replicated"):
        rows.require("tp", ValueState.PART, "reduce_own")
    with pytest.raises(TagError, match="over cp wants unique values, these are untagged"):
        rows.require("cp", ValueState.UNIQ, "restore")
    later = rows.with_values(torch.ones(3, 1), cp=ValueState.UNIQ)
    later.require("cp", ValueState.UNIQ, "restore")
    later.require("tp", ValueState.REP, "cut")
