"""Which rows of a step a rank computes, and how those of all ranks come back in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.parallel.rows.budget import charge
from engine.parallel.rows.zigzag import shortest_split_of, split_rows
from engine.plan import SequenceStep, StepKind, StepPlan
from engine.step_rows import StepRows, all_rows, cut_rows, round_up, sampled_rows
from tests.fakes.vectors import vectors

LENGTHS = st.lists(st.integers(1, 90), max_size=6)
CP = st.sampled_from((2, 3, 4, 8))
MULTIPLE = 8
ZIGZAG = {name: v for name, v in vectors("zigzag").items() if "q_lens" in v["inputs"]}


def step_of(lengths: list[int], starts: list[int] | None = None) -> StepRows:
    """A step of sequences with so many new tokens; token ids count through the batch."""
    starts = starts or [7 * number for number in range(len(lengths))]
    steps, begin = [], 0
    for number, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        steps.append(
            SequenceStep(
                request_id=str(number),
                token_ids=tuple(range(begin, begin + length)),
                start=start,
                block_table=(1,),
                state_slot=10 + number,
                sample=True,
            )
        )
        begin += length
    return StepRows.of(
        StepPlan(kind=StepKind.PREFILL, step=0, sequences=tuple(steps), is_placeholder=not steps)
    )


def test_a_step_lists_its_rows_sequence_by_sequence() -> None:
    step = step_of([2, 3], [5, 0])
    assert step.token_ids.tolist() == [0, 1, 2, 3, 4]
    assert step.positions.tolist() == [5, 6, 0, 1, 2]
    assert step.sequence_of_row.tolist() == [0, 0, 1, 1, 1]
    assert (step.begins.tolist(), step.ends.tolist()) == ([0, 2], [7, 3])
    assert step.slots.tolist() == [10, 11]
    assert not step.direct
    assert step_of([1, 1]).direct


def test_one_rank_has_all_rows_and_gathers_nothing() -> None:
    step = step_of([2, 3])
    rows = all_rows(step, MULTIPLE)
    assert (rows.num_rows, rows.num_tokens, rows.reverse) == (8, 5, None)
    assert rows.spans(step) == ((0, 0, 2), (1, 2, 5))
    assert sampled_rows(np.array([1, 4]), rows, MULTIPLE).rows.tolist() == [1, 4] + [0] * 6
    assert sampled_rows(np.array([1, 4]), rows, MULTIPLE).reverse is None
    assert all_rows(step_of([]), MULTIPLE).num_rows == MULTIPLE


@pytest.mark.parametrize("name", ZIGZAG)
def test_rows_are_those_of_the_split_without_its_holes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.step_rows.shortest_split_of", lambda cp: 0)
    inputs, expected = ZIGZAG[name]["inputs"], ZIGZAG[name]["expected"]
    step = step_of([length for length in inputs["q_lens"] if length])
    for rank, slots in enumerate(expected["mirror"]):
        found = cut_rows(step, inputs["cp"], rank, 1).rows.tolist()
        assert found == [row for row in slots if row >= 0]


@given(lengths=LENGTHS, cp=CP)
def test_gathered_rows_come_back_in_order(lengths: list[int], cp: int) -> None:
    step = step_of(lengths)
    ranks = [cut_rows(step, cp, rank, MULTIPLE) for rank in range(cp)]
    assert len({rows.num_rows for rows in ranks}) == 1
    gathered = np.concatenate([rows.take(step.token_ids) for rows in ranks])
    for rank, rows in enumerate(ranks):
        assert rows.rank == rank
        assert rows.reverse is not None
        assert gathered[rows.reverse].tolist() == list(range(step.num_tokens))
        # Without a restore rows of another order would be stored.
        assert np.array_equal(rows.reverse, ranks[0].reverse)
    assert sorted(np.concatenate([rows.rows for rows in ranks])) == list(range(step.num_tokens))


@given(lengths=LENGTHS, cp=CP)
def test_padding_stands_at_the_tail_alone(lengths: list[int], cp: int) -> None:
    step = step_of(lengths)
    for rank in range(cp):
        rows = cut_rows(step, cp, rank, MULTIPLE)
        taken = rows.take(step.token_ids + 1)
        assert (taken[: rows.num_tokens] > 0).all()
        assert not taken[rows.num_tokens :].any()
        assert rows.num_rows % MULTIPLE == 0
        seen = 0
        for sequence, begin, end in rows.spans(step):
            assert begin == seen < end
            assert (step.sequence_of_row[rows.rows[begin:end]] == sequence).all()
            seen = end
        assert seen == rows.num_tokens


@given(lengths=LENGTHS, cp=CP)
def test_no_rank_has_more_rows_than_its_part_of_the_charge(lengths: list[int], cp: int) -> None:
    rows = cut_rows(step_of(lengths), cp, 0, MULTIPLE)
    charged = sum(charge(length, cp) for length in lengths)
    assert rows.num_rows <= max(round_up(charged // cp, MULTIPLE), MULTIPLE)
    assert rows.num_rows <= max(round_up(split_rows(lengths, cp).mirror_length, MULTIPLE), MULTIPLE)


def test_many_short_sequences_stay_whole() -> None:
    step = step_of([3] * 16)
    for rank in range(4):
        rows = cut_rows(step, 4, rank, 1)
        assert rows.num_tokens == 12
        owners = step.sequence_of_row[rows.rows]
        assert all((step.sequence_of_row == owner).sum() == 3 for owner in set(owners.tolist()))
        assert len(set(owners.tolist())) == 4


def test_a_short_sequence_alone_is_cut_where_that_frees_a_rank() -> None:
    length = shortest_split_of(4) - 1
    assert [cut_rows(step_of([length]), 4, r, 8).num_tokens for r in range(4)] == [7, 8, 8, 8]
    # Padding hides what a cut of seven rows would save.
    assert [cut_rows(step_of([7]), 4, r, 8).num_tokens for r in range(4)] == [7, 0, 0, 0]


@given(lengths=LENGTHS, cp=CP, chosen=st.sets(st.integers(0, 5)))
def test_samples_of_all_ranks_come_back_in_order(
    lengths: list[int], cp: int, chosen: set[int]
) -> None:
    step = step_of(lengths)
    ends = np.cumsum(lengths, dtype=np.int64) - 1
    samples = np.array([ends[i] for i in sorted(chosen) if i < len(ends)], dtype=np.int64)
    gathered, reverses = [], []
    for rank in range(cp):
        rows = cut_rows(step, cp, rank, MULTIPLE)
        found = sampled_rows(samples, rows, MULTIPLE)
        gathered.append(rows.take(step.token_ids)[found.rows])
        reverses.append(found.reverse)
    assert len({len(part) for part in gathered}) == 1
    assert len(reverses[0]) % MULTIPLE == 0
    back = np.concatenate(gathered)[reverses[0][: len(samples)]]
    assert back.tolist() == samples.tolist()
    assert all(np.array_equal(reverse, reverses[0]) for reverse in reverses)


@pytest.mark.parametrize("value", [0, 1, 7, 8, 9, 64])
def test_rounding_up(value: int) -> None:
    found = round_up(value, 8)
    assert found % 8 == 0
    assert 0 <= found - value < 8


def test_marks_of_a_replay_come_with_the_rows() -> None:
    step = SequenceStep(
        request_id="a",
        token_ids=(5, 6),
        start=9,
        block_table=(1, 2),
        state_slot=1,
        sample=False,
        window_start=7,
        stored_tokens=16,
    )
    plan = StepPlan(kind=StepKind.PREFILL, step=0, sequences=(step,), is_placeholder=False)
    rows = StepRows.of(plan)
    assert (rows.window_starts.tolist(), rows.stored.tolist()) == ([7], [16])
