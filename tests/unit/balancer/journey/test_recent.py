"""The last requests: bounded, newest first, counted beyond what is kept."""

from __future__ import annotations

import pytest

from balancer.journey.recent import Ended, RecentRequests
from balancer.journey.request import Timing


def ended(request_id: str) -> Ended:
    return Ended(
        request_id=request_id,
        ended_at=1.0,
        outcome="stop",
        reason="",
        prompt_tokens=4,
        cached_tokens=2,
        generated_tokens=3,
        attempts=1,
        timing=Timing(),
    )


def test_the_oldest_goes_and_the_counts_stay() -> None:
    recent = RecentRequests(2)
    assert recent.latest() == ()
    for name in "abc":
        recent.append(ended(name))
    assert [item.request_id for item in recent.latest()] == ["c", "b"]
    assert (recent.num_ended, recent.num_tokens) == (3, 9)


def test_none_is_too_few() -> None:
    with pytest.raises(ValueError, match="max_requests 0 must be at least 1"):
        RecentRequests(0)
