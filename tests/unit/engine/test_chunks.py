"""Who has rows in a step, how many tokens fit, and where chunks must end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chunks import StepBudget, has_row_in, rows_wanted, state_boundaries
from engine.config import EngineRole
from engine.handoff import SequenceImage
from engine.kv_connector import InMemoryExport
from engine.plan import StepKind
from engine.request import EngineRequest
from engine.sequence import Sequence
from tests.fakes.sequences import sequence_of

BLOCK = 4
P, D = StepKind.PREFILL, StepKind.DECODE


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    num_tokens = draw(st.integers(1, 30))
    num_computed = draw(st.integers(0, num_tokens))
    return sequence_of(
        num_tokens=num_tokens,
        num_computed=num_computed,
        num_generated=draw(st.integers(0, num_tokens - 1)),
        max_kv_tokens=draw(st.sampled_from((num_computed, 100))),
        boundaries=tuple(range(draw(st.integers(1, 9)), num_tokens + 1, draw(st.integers(1, 9)))),
        is_paused=draw(st.booleans()),
    )


@given(st.lists(sequences(), max_size=6), st.sampled_from(EngineRole))
def test_rows_are_wanted_by_those_who_have_one_in_a_kind_and_can_go_on(
    running: list[Sequence], role: EngineRole
) -> None:
    for kind in (P, D):
        assert rows_wanted(running, kind, role) == [
            (sequence, sequence.num_missing)
            for sequence in running
            if has_row_in(kind, role, sequence)
            and not sequence.is_paused
            and not sequence.is_ending
        ]


@given(sequences(), st.sampled_from(EngineRole))
def test_every_sequence_has_rows_in_one_kind(sequence: Sequence, role: EngineRole) -> None:
    assert has_row_in(P, role, sequence) is not has_row_in(D, role, sequence)


@given(
    running=st.lists(sequences(), max_size=8),
    num_tokens=st.integers(4, 40),
    cp=st.sampled_from((1, 2)),
)
def test_no_step_takes_more_than_its_budget(
    running: list[Sequence], num_tokens: int, cp: int
) -> None:
    running = [sequence for sequence in running if sequence.num_missing]
    newest = [sequence for sequence in running if sequence.num_missing == 1]
    budget = StepBudget(num_tokens, cp=cp, num_newest=len(newest))
    # A single token is padded to a whole multiple, as any chunk is.
    multiple = 1 if cp == 1 else 2 * cp
    charged = 0
    for sequence in running:
        if sequence.num_missing == 1:
            taken = budget.take_newest()
            assert taken in (0, 1)
        else:
            taken = budget.chunk_of(sequence)
            budget.take_chunk(taken)
        charged += -(-taken // multiple) * multiple
        assert 0 <= taken <= sequence.num_missing
    assert charged <= num_tokens
    assert budget.can_take_chunk() is (budget.num_spare >= multiple)


@given(sequences(), st.integers(1, 40))
def test_a_chunk_is_never_empty_and_never_crosses_a_boundary(
    sequence: Sequence, num_tokens: int
) -> None:
    chunk = StepBudget(num_tokens, cp=1, num_newest=0).chunk_of(sequence)
    assert (chunk > 0) is (sequence.num_missing > 0)
    start = sequence.num_computed
    crossed = [end for end in sequence.boundaries if start < end < start + chunk]
    assert crossed == []
    # It ends where it must: at a boundary, at the budget, or with the sequence.
    assert start + chunk in sequence.boundaries or chunk in (num_tokens, sequence.num_missing)


def test_newest_tokens_come_before_chunks() -> None:
    budget = StepBudget(6, cp=1, num_newest=4)
    late = sequence_of(num_tokens=9)
    assert budget.chunk_of(late) == 2
    budget.take_chunk(2)
    assert not budget.can_take_chunk()
    assert [budget.take_newest() for _ in range(5)] == [1, 1, 1, 1, 0]


def test_looking_at_a_chunk_takes_nothing_and_a_limit_only_lowers() -> None:
    budget = StepBudget(10, cp=1, num_newest=0)
    sequence = sequence_of(num_tokens=20)
    assert [budget.chunk_of(sequence) for _ in range(2)] == [10, 10]
    budget.limit_to(12)
    assert budget.chunk_of(sequence) == 10
    budget.limit_to(3)
    assert budget.chunk_of(sequence) == 3
    budget.limit_to(0)
    assert not budget.can_take_chunk()


def test_under_context_parallelism_what_is_cut_ends_at_a_multiple() -> None:
    budget = StepBudget(10, cp=2, num_newest=0)
    assert budget.chunk_of(sequence_of(num_tokens=9)) == 8
    assert budget.chunk_of(sequence_of(num_tokens=7)) == 7
    budget.take_chunk(7)
    assert budget.num_spare == 2
    assert not budget.can_take_chunk()


def test_under_context_parallelism_single_tokens_are_padded_too() -> None:
    budget = StepBudget(10, cp=2, num_newest=3)
    assert (budget.num_newest, budget.num_spare) == (2, 2)


def image_of(num_tokens: int, replay_from: int | None = None) -> SequenceImage:
    return SequenceImage(
        num_tokens=num_tokens, blocks=(), partial=b"", state=b"", replay_from=replay_from
    )


@pytest.mark.parametrize(
    ("image", "every", "boundaries"),
    [
        (None, 1, (4, 8, 12)),
        (None, 2, (8,)),
        (None, 4, ()),
        # Behind an image with its own state the first wanted one is the next.
        (image_of(8), 1, (12,)),
        (image_of(9), 1, (12,)),
        # What a replay rebuilds is worth storing.
        (image_of(8, replay_from=3), 1, (8, 12)),
    ],
)
def test_boundaries_are_where_the_export_wants_a_state(
    image: SequenceImage | None, every: int, boundaries: tuple[int, ...]
) -> None:
    request = EngineRequest(
        request_id="a",
        token_ids=tuple(range(14)),
        image=image,
        export=InMemoryExport(BLOCK, state_every_blocks=every),
    )
    assert state_boundaries(request, BLOCK) == boundaries


def test_without_an_export_there_are_no_boundaries() -> None:
    assert state_boundaries(EngineRequest(request_id="a", token_ids=(1, 2, 3, 4)), 1) == ()
