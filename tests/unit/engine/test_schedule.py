"""A row says which tokens a step computes; written into a plan it says where they lie."""

from __future__ import annotations

import pytest

from engine.block_manager import BlockManager
from engine.config import CacheSize
from engine.schedule import Row, Schedule, step_of
from tests.fakes.sequences import sequence_of

CACHE = CacheSize(num_pages=10, num_state_slots=4, block_tokens=4)


def test_tokens_of_a_schedule_are_those_of_its_rows() -> None:
    assert Schedule().num_tokens == 0
    rows = [Row(sequence_of("a", 9), 4), Row(sequence_of("b", 2), 1)]
    assert Schedule(rows=rows).num_tokens == 5


@pytest.mark.parametrize(
    # tokens with KV, tokens of the row, pages of its table, sampled
    ("num_computed", "num_tokens", "num_pages", "sample"),
    [(0, 4, 1, False), (0, 5, 2, False), (4, 5, 3, False), (8, 2, 3, True), (9, 1, 3, True)],
)
def test_a_row_becomes_the_step_of_its_tokens(
    num_computed: int, num_tokens: int, num_pages: int, sample: bool
) -> None:
    blocks = BlockManager(CACHE.num_pages, CACHE.num_state_slots)
    assert blocks.try_allocate("other", 2)
    assert blocks.try_allocate("a", 5)
    sequence = sequence_of("a", 10, num_computed=num_computed)
    step = step_of(Row(sequence, num_tokens), blocks, CACHE)
    assert (step.request_id, step.state_slot) == ("a", blocks.state_slot("a"))
    assert (step.start, step.end) == (num_computed, num_computed + num_tokens)
    assert step.token_ids == tuple(range(step.start, step.end))
    assert step.block_table == blocks.block_table("a")[:num_pages]
    assert step.sample is sample
    assert (step.stored_tokens, step.window_start) == (0, 0)


def test_a_row_for_a_promised_token_has_no_token_yet() -> None:
    blocks = BlockManager(CACHE.num_pages, CACHE.num_state_slots)
    assert blocks.try_allocate("a", 3)
    sequence = sequence_of("a", 5, num_computed=5)
    sequence.num_promised = 1
    step = step_of(Row(sequence, 1), blocks, CACHE)
    assert step.token_ids == ()
    assert step.sample


def test_a_replaying_row_says_what_is_stored() -> None:
    blocks = BlockManager(CACHE.num_pages, CACHE.num_state_slots)
    assert blocks.try_allocate("a", 4)
    sequence = sequence_of("a", 14, num_computed=5)
    sequence.replay_start, sequence.replay_end = 3, 8
    step = step_of(Row(sequence, 3), blocks, CACHE)
    assert (step.stored_tokens, step.window_start) == (8, 3)
    sequence.num_computed = 8
    step = step_of(Row(sequence, 3), blocks, CACHE)
    assert (step.stored_tokens, step.window_start) == (0, 0)
