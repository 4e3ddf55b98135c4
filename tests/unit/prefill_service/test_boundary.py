"""Where boundary states are kept, and the words for it."""

import pytest

from prefill_service.boundary import BoundaryPolicy


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (BoundaryPolicy(), [8, 16, 19]),
        (BoundaryPolicy(every_blocks=1), list(range(1, 20))),
        (BoundaryPolicy(every_blocks=0), [19]),
        (BoundaryPolicy(every_blocks=8, at_last_block=False), [8, 16]),
        (BoundaryPolicy(every_blocks=0, at_last_block=False), []),
    ],
)
def test_where_boundary_state_is_stored(policy: BoundaryPolicy, wanted: list[int]) -> None:
    assert [end for end in range(1, 20) if policy.wants(end, 19)] == wanted
    assert policy.count(0, 19) == len(wanted)
    assert policy.count(16, 19) == len([end for end in wanted if end > 16])


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("every", BoundaryPolicy(every_blocks=1)),
        ("every:8", BoundaryPolicy()),
        ("every:3", BoundaryPolicy(every_blocks=3)),
        ("last", BoundaryPolicy(every_blocks=0)),
        ("none", BoundaryPolicy(every_blocks=0, at_last_block=False)),
    ],
)
def test_the_words_of_the_setting(text: str, policy: BoundaryPolicy) -> None:
    assert BoundaryPolicy.parse(text) == policy


@pytest.mark.parametrize("text", ["", "all", "every:", "every:0", "every:-1", "every:x", "last:2"])
def test_other_words_are_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"write every, every:K \(K blocks, at least 1\)"):
        BoundaryPolicy.parse(text)
