"""A step's tensors on context ranks: per row those of one rank's step, of writes all of them.

What a row sees (T-K vectors) is checked against the windows of `engine.parallel.rows.zigzag`.
"""

import dataclasses
import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.build import kv_layout
from engine.input_batch import InputBuilder
from engine.kv_pool import KvPool
from engine.model.rotary import RotaryTables
from engine.parallel.rows.zigzag import key_windows, split_rows
from engine.plan import SequenceStep, StepKind, StepPlan, placeholder_plan
from engine.step_inputs import StepInputs
from engine.step_rows import StepRows, cut_rows
from tests.fakes.models import GOLDEN
from tests.fakes.vectors import vectors

LAYOUT = kv_layout(GOLDEN / "v4_hca8")
POOL = KvPool(LAYOUT, num_pages=200, num_slots=8, max_tokens=512)
BLOCK = LAYOUT.block_tokens
RATIOS = sorted({part.ratio for part in LAYOUT.slices})
WINDOWS = {
    name: vector
    for name, vector in vectors("ks_ke").items()
    if "k_lens" in vector["inputs"] and vector["inputs"]["ratio"] in RATIOS
}
LENGTHS = st.lists(
    st.tuples(st.integers(1, 70), st.sampled_from((0, 0, 1, 4, 30, 33))), min_size=1, max_size=4
)
# Describe this rank's rows; everything else describes the step.
PER_ROW = (
    "token_ids",
    "positions",
    "sequence_of_row",
    "rotation_window",
    "rotation_window_back",
    "rotation_long",
    "rotation_long_back",
    "window_rows",
    "window_is_new",
    "window_mask",
)
OWN = {*PER_ROW, "num_rows", "num_tokens", "reverse", "spans", "ratios"}
OWN |= {"sample_rows", "sample_reverse"}


def plan_of(lengths: list[tuple[int, int]]) -> StepPlan:
    """A step of (new tokens, prefix) pairs; pages of a sequence follow each other."""
    steps = []
    page = 1
    for number, (count, start) in enumerate(lengths):
        pages = -(-(start + count) // BLOCK)
        steps.append(
            SequenceStep(
                request_id=str(number),
                token_ids=tuple((7 * number + i) % 250 for i in range(count)),
                start=start,
                block_table=tuple(range(page, page + pages)),
                state_slot=1 + number,
                sample=number % 2 == 0,
            )
        )
        page += pages
    return StepPlan(kind=StepKind.PREFILL, step=0, sequences=tuple(steps), is_placeholder=not steps)


@functools.cache
def builder(cp: int, rank: int) -> InputBuilder:
    return InputBuilder(
        LAYOUT, POOL, RotaryTables(LAYOUT.config), row_multiple=8, cp=cp, cp_rank=rank
    )


def equal(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    return left == right


@pytest.mark.medium
@settings(max_examples=25)
@given(lengths=LENGTHS, cp=st.sampled_from((2, 4)))
def test_rows_are_cut_and_writes_are_not(lengths: list[tuple[int, int]], cp: int) -> None:
    plan = plan_of(lengths)
    one = builder(1, 0).build(plan)
    step = StepRows.of(plan)
    for rank in range(cp):
        inputs = builder(cp, rank).build(plan)
        rows = cut_rows(step, cp, rank, 8)
        assert (inputs.num_rows, inputs.num_tokens) == (rows.num_rows, len(rows.rows))
        index = torch.from_numpy(rows.rows)
        for name in PER_ROW:
            found, whole = getattr(inputs, name), getattr(one, name)
            if whole is None:
                assert found is None
                continue
            assert torch.equal(found[: len(index)], whole[index]), name
        # Padding sees the sink alone.
        assert not torch.isfinite(inputs.window_mask[len(index) :, 1:]).any()
        for field in dataclasses.fields(StepInputs):
            if field.name not in OWN:
                assert equal(getattr(inputs, field.name), getattr(one, field.name)), field.name
        for ratio, shared in inputs.ratios.items():
            alone = one.ratios[ratio]
            assert torch.equal(shared.visible[: len(index)], alone.visible[index])
            assert not shared.visible[len(index) :].any()
            for field in dataclasses.fields(shared):
                if field.name not in {"visible", "everything"}:
                    found = getattr(shared, field.name)
                    assert equal(found, getattr(alone, field.name)), field.name
            assert (shared.everything is None) is (alone.everything is None)
            if shared.everything is not None and alone.everything is not None:
                for name in ("entry_rows", "mask"):
                    found = getattr(shared.everything, name)
                    assert torch.equal(found[: len(index)], getattr(alone.everything, name)[index])


def windows_of(lengths: list[tuple[int, int]], cp: int, ratio: int) -> list[tuple[int, int]]:
    """(first, end) of what each row of a step sees of the concatenation of all entries."""
    q_lens = [count for count, _ in lengths]
    split = split_rows(q_lens, cp)
    windows = key_windows(split, q_lens, [count + start for count, start in lengths], ratio)
    found = {
        int(row): (int(first), int(end))
        for rows, firsts, ends in zip(split.mirror, windows.starts, windows.ends, strict=True)
        for row, first, end in zip(rows, firsts, ends, strict=True)
        if row >= 0
    }
    return [found[row] for row in range(sum(q_lens))]


def check_windows(
    lengths: list[tuple[int, int]], cp: int, ratio: int, expected: list[tuple[int, int]]
) -> None:
    """Compares what the model lets rows see with windows over the concatenated entries."""
    plan = plan_of(lengths)
    # Page and place of every entry in the concatenation; one empty slot where there is none.
    places: list[int | None] = []
    per_page = BLOCK // ratio
    for step in plan.sequences:
        entries: list[int | None] = [
            step.block_table[entry // per_page] * LAYOUT.entry_rows + entry % per_page
            for entry in range(step.end // ratio)
        ]
        places += entries or [None]
    for rank in range(cp):
        inputs = builder(cp, rank).build(plan)
        shared = inputs.ratios[ratio]
        rows = cut_rows(StepRows.of(plan), cp, rank, 8).rows.tolist()
        for here, row in enumerate(rows):
            first, end = expected[row]
            visible = int(shared.visible[here])
            assert visible == end - first
            sequence = int(inputs.sequence_of_row[here])
            assert shared.entry_table[sequence, :visible].tolist() == places[first:end]


@pytest.mark.parametrize("name", WINDOWS)
def test_rows_see_the_entries_of_the_vector(name: str) -> None:
    inputs, expected = WINDOWS[name]["inputs"], WINDOWS[name]["expected"]
    lengths = [(q, k - q) for q, k in zip(inputs["q_lens"], inputs["k_lens"], strict=True)]
    mirror = split_rows(inputs["q_lens"], inputs["cp"]).mirror.tolist()
    windows = {
        row: (first, end)
        for rows, firsts, ends in zip(mirror, expected["ks"], expected["ke"], strict=True)
        for row, first, end in zip(rows, firsts, ends, strict=True)
        if row >= 0
    }
    ordered = [windows[row] for row in range(sum(inputs["q_lens"]))]
    check_windows(lengths, inputs["cp"], inputs["ratio"], ordered)


def test_there_are_vectors_of_a_ratio_of_the_model() -> None:
    assert {"T-K2", "T-K3", "T-K4"} <= set(WINDOWS)


@pytest.mark.medium
@settings(max_examples=25)
@given(lengths=LENGTHS, cp=st.sampled_from((2, 4)), ratio=st.sampled_from(RATIOS))
def test_rows_see_the_entries_of_their_windows(
    lengths: list[tuple[int, int]], cp: int, ratio: int
) -> None:
    check_windows(lengths, cp, ratio, windows_of(lengths, cp, ratio))


def test_samples_are_those_of_the_step_on_every_rank() -> None:
    plan = plan_of([(40, 0), (3, 0), (20, 5)])
    ids = builder(1, 0).build(plan).token_ids[:63]
    parts = [builder(2, rank).build(plan) for rank in range(2)]
    gathered = torch.cat([inputs.token_ids[inputs.sample_rows] for inputs in parts])
    for inputs in parts:
        assert inputs.num_samples == 2
        assert inputs.sample_reverse is not None
        assert gathered[inputs.sample_reverse[:2]].tolist() == ids[[39, 62]].tolist()


def test_a_placeholder_is_padding_alone() -> None:
    inputs = builder(4, 1).build(placeholder_plan(StepKind.PREFILL, 3))
    assert (inputs.num_tokens, inputs.num_rows, inputs.num_samples) == (0, 8, 0)
    assert inputs.reverse is not None
    assert inputs.reverse.numel() == 0


def test_decode_steps_are_not_cut() -> None:
    plan = plan_of([(1, 20), (1, 9), (1, 4)])
    decode = dataclasses.replace(plan, kind=StepKind.DECODE)
    assert builder(2, 0).cuts(StepKind.PREFILL)
    assert not builder(2, 0).cuts(StepKind.DECODE)
    assert not builder(1, 0).cuts(StepKind.PREFILL)
    assert builder(2, 0).build(plan).num_tokens == 2
    whole = builder(2, 0).build(decode)
    assert (whole.num_tokens, whole.reverse, whole.sample_reverse) == (3, None, None)
