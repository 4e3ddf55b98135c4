"""The cheaper of two exact ways to go on, and that both sides would choose the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.lookup import match_prefix
from kvstore.resume import ResumePlan, plan_resume

BLOCK = 32


@pytest.mark.parametrize(
    ("num_blocks", "resume_blocks", "replay", "read", "saved", "replayed"),
    [
        (0, 0, 70, 0, 0, 0),
        (2, 0, 70, 0, 0, 0),  # 64 stored tokens do not hold a replay of 70
        (3, 0, 70, 3, 26, 70),
        (3, 0, 96, 0, 0, 0),  # it would begin at token 0: that is a prefill
        (10, 8, 70, 8, 256, 0),  # 64 tokens behind the state
        (11, 8, 96, 8, 256, 0),  # equal
        (11, 8, 95, 11, 257, 95),
        (11, 11, 1, 11, 352, 0),
        (11, 3, None, 3, 96, 0),
    ],
)
def test_the_way_with_fewer_tokens_is_taken(
    num_blocks: int, resume_blocks: int, replay: int | None, read: int, saved: int, replayed: int
) -> None:
    plan = plan_resume(
        match_prefix(num_blocks, resume_blocks, 1), block_tokens=BLOCK, window_replay_tokens=replay
    )
    assert plan == ResumePlan(num_blocks=read, num_tokens=read * BLOCK, replay_tokens=replayed)
    assert plan.saved_tokens == saved
    assert plan.replay_from == (saved if replayed else None)


@given(
    num_blocks=st.integers(0, 50),
    behind=st.integers(0, 50),
    replay=st.none() | st.integers(1, 2000),
    block_tokens=st.integers(1, 64),
)
def test_no_end_and_no_state_would_save_more(
    num_blocks: int, behind: int, replay: int | None, block_tokens: int
) -> None:
    match = match_prefix(num_blocks, max(0, num_blocks - behind), block_tokens)
    plan = plan_resume(match, block_tokens=block_tokens, window_replay_tokens=replay)
    ways = [match.resume_blocks * block_tokens]
    if replay is not None:
        ways += [end * block_tokens - replay for end in range(num_blocks + 1)]
    assert plan.saved_tokens == max(ways)
    assert 0 <= plan.saved_tokens <= plan.num_tokens <= num_blocks * block_tokens
    assert plan.replay_from is None or 0 < plan.replay_from < plan.num_tokens
