"""The longest resumable prefix, as plain arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.lookup import PrefixMatch, candidate_ends, count_contiguous, match_prefix


@pytest.mark.parametrize(
    ("present", "count"),
    [([], 0), ([True], 1), ([False, True], 0), ([True, True, False, True], 2)],
)
def test_contiguous_means_from_the_start(present: list[bool], count: int) -> None:
    assert count_contiguous(present) == count


@given(num_blocks=st.integers(0, 5000), batch=st.integers(1, 64))
def test_candidates_are_all_ends_longest_first(num_blocks: int, batch: int) -> None:
    batches = list(candidate_ends(num_blocks, batch))
    assert [end for ends in batches for end in ends] == list(range(num_blocks, 0, -1))
    assert all(len(ends) > 0 for ends in batches)
    assert len(batches) <= 14  # doubling: few round trips even for a million tokens


def test_replay_is_priced_in_tokens() -> None:
    assert match_prefix(10, 8, 128) == PrefixMatch(
        num_blocks=10, resume_blocks=8, replay_tokens=256
    )
    assert match_prefix(0, 0, 128).replay_tokens == 0
