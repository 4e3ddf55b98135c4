"""Row lists of a step, checked by following labels: which token's row does each column name?

A label is (sequence, position). Labels are written where the step's rows would be written, in the
order in which a layer does it, and read back through the lists a layer reads through.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disagg_kernels.attention import SINK_COLUMNS
from engine.build import kv_layout
from engine.input_batch import InputBuilder
from engine.kv_pool import KvPool
from engine.model.rotary import RotaryTables
from engine.plan import SequenceStep, StepKind, StepPlan, placeholder_plan
from engine.step_inputs import RatioInputs, StepInputs
from engine.step_rows import round_up
from tests.fakes.models import GOLDEN

LAYOUT = kv_layout(GOLDEN / "v4_hca8")
CONFIG = LAYOUT.config
WINDOW, BLOCK = CONFIG.sliding_window, LAYOUT.block_tokens
POOL = KvPool(LAYOUT, num_pages=40, num_slots=5, max_tokens=256)
ROTARY = RotaryTables(CONFIG)
MULTIPLE = 8
LAYER = 3
NEG_INF = float("-inf")
Label = tuple[int, int]


def builder() -> InputBuilder:
    return InputBuilder(LAYOUT, POOL, ROTARY, row_multiple=MULTIPLE)


def plan(*steps: SequenceStep) -> StepPlan:
    return StepPlan(kind=StepKind.PREFILL, step=0, sequences=steps, is_placeholder=not steps)


@dataclass
class World:
    """Where the rows of all sequences lie, by label."""

    lengths: list[int]
    window: dict[int, Label] = field(default_factory=dict)
    rings: dict[int, dict[int, Label]] = field(default_factory=dict)
    entries: dict[int, dict[tuple[int, int], Label]] = field(default_factory=dict)

    def table(self, sequence: int) -> tuple[int, ...]:
        """Pages of different sequences alternate, so that a mix-up would be seen."""
        count = -(-self.lengths[sequence] // BLOCK)
        return tuple(1 + sequence + len(self.lengths) * page for page in range(count))

    def step(self, counts: list[int]) -> None:
        """Computes so many tokens of each sequence and checks every list on the way."""
        chosen = [(s, count) for s, count in enumerate(counts) if count]
        steps = []
        for sequence, count in chosen:
            start = self.lengths[sequence]
            self.lengths[sequence] += count
            steps.append(
                SequenceStep(
                    request_id=str(sequence),
                    token_ids=tuple(range(start, start + count)),
                    start=start,
                    block_table=self.table(sequence),
                    state_slot=1 + sequence,
                    sample=sequence % 2 == 0,
                )
            )
        inputs = builder().build(plan(*steps))
        labels = [(s, p) for s, n in chosen for p in range(self.lengths[s] - n, self.lengths[s])]
        assert inputs.num_tokens == len(labels)
        assert inputs.num_rows == max(round_up(len(labels), MULTIPLE), MULTIPLE)
        assert inputs.positions[: len(labels)].tolist() == [p for _, p in labels]
        assert inputs.token_ids[: len(labels)].tolist() == [p for _, p in labels]
        assert inputs.direct == all(count == 1 for _, count in chosen)
        self._check_window(inputs, labels)
        for ratio, shared in inputs.ratios.items():
            self._check_ratio(inputs, shared, ratio, labels, chosen)

    def _check_window(self, inputs: StepInputs, labels: list[Label]) -> None:
        offset = LAYER * WINDOW
        memory = dict(self.window)
        kept = zip(inputs.window_source.tolist(), inputs.window_target.tolist(), strict=True)
        written = {target + offset: labels[source] for source, target in kept}
        first, last = POOL.windows_at, POOL.scratch_at
        assert all(first <= row < last for row in written)
        if inputs.direct:
            memory.update(written)
        else:
            memory.update({POOL.scratch_at + row: label for row, label in enumerate(labels)})
        assert not inputs.window_rows[:, :SINK_COLUMNS].any()
        assert (inputs.window_mask[:, 0] == 0.0).all()
        for row in range(inputs.num_rows):
            seen = []
            for column in range(1, inputs.window_rows.shape[1]):
                if inputs.window_mask[row, column] == NEG_INF:
                    continue
                place = int(inputs.window_rows[row, column])
                new = inputs.window_is_new is not None and inputs.window_is_new[row, column]
                seen.append(memory[place if new else place + offset])
            if row >= len(labels):
                assert seen == []
                continue
            sequence, position = labels[row]
            first_seen = max(0, position - WINDOW + 1)
            assert seen == [(sequence, p) for p in range(first_seen, position + 1)]
        self.window.update(written)

    def _check_ratio(
        self,
        inputs: StepInputs,
        shared: RatioInputs,
        ratio: int,
        labels: list[Label],
        chosen: list[tuple[int, int]],
    ) -> None:
        overlap = ratio == 4
        ring = self.rings.setdefault(ratio, {})
        kept = zip(shared.ring_source.tolist(), shared.ring_target.tolist(), strict=True)
        written = {target: labels[source] for source, target in kept}
        if inputs.direct:
            ring.update(written)
            source = ring
        else:
            places = shared.sequence_ring.tolist()
            source = {i: ring[place] for i, place in enumerate(places) if place in ring}
            source.update({len(places) + row: label for row, label in enumerate(labels)})
        ring.update(written)
        closing = [
            (s, group)
            for s, count in chosen
            for group in range((self.lengths[s] - count) // ratio, self.lengths[s] // ratio)
        ]
        assert shared.num_groups == len(closing)
        memory = self.entries.setdefault(ratio, {})
        for number, (sequence, group) in enumerate(closing):
            span = [source.get(row) for row in shared.group_rows[number].tolist()]
            own = [(sequence, p) for p in range(group * ratio, (group + 1) * ratio)]
            assert span[-ratio:] == own
            if overlap:
                assert bool(shared.first[number]) is (group == 0)
                before = [(sequence, p) for p in range((group - 1) * ratio, group * ratio)]
                assert group == 0 or span[:ratio] == before
            expected = ROTARY.long[group * ratio]
            assert torch.equal(shared.group_rotation[number], expected)
            page, place = int(shared.entry_pages[number]), int(shared.entry_places[number])
            assert page == self.table(sequence)[group * ratio // BLOCK]
            memory[page, place] = (sequence, group)
        assert not shared.entry_pages[len(closing) :].any()
        self._check_entries(shared, ratio, labels, memory)

    def _check_entries(
        self,
        shared: RatioInputs,
        ratio: int,
        labels: list[Label],
        memory: dict[tuple[int, int], Label],
    ) -> None:
        visible = [(position + 1) // ratio for _, position in labels]
        assert shared.visible[: len(labels)].tolist() == visible
        assert not shared.visible[len(labels) :].any()
        seen = max(visible, default=0)
        for index, sequence in enumerate(dict.fromkeys(sequence for sequence, _ in labels)):
            own = [v for (s, _), v in zip(labels, visible, strict=True) if s == sequence]
            for group in range(max(own)):
                row = int(shared.entry_table[index, group])
                assert memory[divmod(row, LAYOUT.entry_rows)] == (sequence, group)
                if shared.key_table is not None:
                    key = int(shared.key_table[index, group])
                    assert divmod(key, LAYOUT.index_rows) == divmod(row, LAYOUT.entry_rows)
        if shared.everything is None:
            assert seen == 0 or (shared.key_table is not None and seen > CONFIG.index_topk)
            return
        assert shared.key_table is None or seen <= CONFIG.index_topk
        listed, mask = shared.everything.entry_rows, shared.everything.mask
        assert listed.shape[1] % SINK_COLUMNS == 0
        for row in range(len(listed)):
            columns = (mask[row] == 0.0).nonzero()[:, 0].tolist()
            found = [
                memory[divmod(int(listed[row, column]), LAYOUT.entry_rows)] for column in columns
            ]
            if row >= len(labels):
                assert found == []
            else:
                assert found == [(labels[row][0], group) for group in range(visible[row])]


@pytest.mark.medium
@settings(max_examples=40)
@given(
    counts=st.lists(
        st.lists(st.sampled_from((0, 0, 1, 1, 2, 3, 5, 8, 17, 33)), min_size=3, max_size=3),
        min_size=1,
        max_size=8,
    )
)
def test_every_column_names_the_row_it_should(counts: list[list[int]]) -> None:
    world = World([0, 0, 0])
    for step in counts:
        world.step(step)


def test_decode_of_three_sequences_at_borders() -> None:
    world = World([0, 0, 0])
    world.step([7, 15, 31])
    for _ in range(4):
        world.step([1, 1, 1])
    world.step([0, 1, 0])


def test_a_step_of_everything_at_once() -> None:
    world = World([0, 0, 0])
    world.step([40, 1, 0])
    world.step([1, 30, 3])


def test_sampled_rows_are_the_last_of_their_sequences() -> None:
    steps = [
        SequenceStep(
            request_id=str(i),
            token_ids=(5,) * count,
            start=0,
            block_table=(1 + i,),
            state_slot=1 + i,
            sample=sample,
        )
        for i, (count, sample) in enumerate(((3, True), (2, False), (4, True)))
    ]
    inputs = builder().build(plan(*steps))
    assert inputs.num_samples == 2
    assert inputs.sample_rows.tolist() == [2, 8] + [0] * 6
    assert inputs.spans == ((0, 0, 3), (1, 3, 5), (2, 5, 9))
    assert inputs.sequence_of_row.tolist() == [0] * 3 + [1] * 2 + [2] * 4 + [0] * 7


def test_rotations_are_those_of_the_positions() -> None:
    step = SequenceStep(
        request_id="a",
        token_ids=(5, 6, 7),
        start=30,
        block_table=(1, 2),
        state_slot=1,
        sample=True,
    )
    inputs = builder().build(plan(step))
    assert torch.equal(inputs.rotation_window[:3], ROTARY.window[30:33])
    assert torch.equal(inputs.rotation_long[:3], ROTARY.long[30:33])
    for there, back in (
        (inputs.rotation_window, inputs.rotation_window_back),
        (inputs.rotation_long, inputs.rotation_long_back),
    ):
        assert torch.equal(back, there.conj())


def test_a_placeholder_is_padding_alone() -> None:
    inputs = builder().build(placeholder_plan(StepKind.DECODE, 4))
    assert (inputs.num_tokens, inputs.num_rows, inputs.num_samples) == (0, MULTIPLE, 0)
    assert not inputs.token_ids.any()
    assert inputs.window_target.numel() == 0
    assert (inputs.window_mask[:, 1:] == NEG_INF).all()
    for shared in inputs.ratios.values():
        assert shared.num_groups == 0
        assert shared.max_visible == 0
        assert shared.ring_target.numel() == 0


@pytest.mark.parametrize("value", [0, 1, 7, 8, 9, 64])
def test_rounding_up(value: int) -> None:
    found = round_up(value, 8)
    assert found % 8 == 0
    assert 0 <= found - value < 8


def test_row_counts_follow_the_multiple() -> None:
    single = InputBuilder(LAYOUT, POOL, ROTARY, row_multiple=1)
    for count in (1, 3):
        step = SequenceStep(
            request_id="a",
            token_ids=(5,) * count,
            start=0,
            block_table=(1,),
            state_slot=1,
            sample=True,
        )
        assert single.build(plan(step)).num_rows == count
        assert np.array_equal(single.build(plan(step)).positions.numpy(), np.arange(count))


@pytest.mark.parametrize("count", [1, 20])
def test_a_replay_writes_no_stored_entry_and_sees_no_window_before_it(count: int) -> None:
    """Tokens [44, 44 + count) of a replay of [40, 56): from 56 on entries are written again."""
    step = SequenceStep(
        request_id="a",
        token_ids=(5,) * count,
        start=44 if count > 1 else 47,
        block_table=(1, 2),
        state_slot=1,
        sample=False,
        window_start=40,
        stored_tokens=56,
    )
    inputs = builder().build(plan(step))
    for ratio, shared in inputs.ratios.items():
        ends = [end for end in range(step.start + 1, step.end + 1) if end % ratio == 0]
        assert ends, "a group ends in the step"
        assert shared.num_groups == sum(end > 56 for end in ends)
        assert shared.visible[:count].tolist() == [
            (position + 1) // ratio for position in range(step.start, step.end)
        ]
        assert shared.ring_target.numel() == min(count, shared.ring)
    seen = (inputs.window_mask[:count, SINK_COLUMNS:] == 0.0).sum(1).tolist()
    assert seen == [min(WINDOW, position - 40 + 1) for position in range(step.start, step.end)]
    assert inputs.window_target.numel() == min(count, WINDOW)
