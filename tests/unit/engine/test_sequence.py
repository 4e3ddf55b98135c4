"""Counting of known, computed and generated tokens; how a generation ends."""

from __future__ import annotations

import pytest

from engine.handoff import SequenceImage
from engine.request import EngineRequest, SamplingParams
from engine.sequence import Sequence

EOS = (7,)


def sequence_of(num_prompt: int, num_generated: int = 0, image: int = 0, **sampling: object):
    return Sequence(
        EngineRequest(
            request_id="a",
            token_ids=tuple(range(num_prompt + num_generated)),
            num_generated=num_generated,
            sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
            image=SequenceImage(num_tokens=image, blocks=(), partial=b"", state=b"")
            if image
            else None,
        ),
        arrival_idx=1,
        max_kv_tokens=100,
        max_pages=25,
    )


@pytest.mark.parametrize(
    # prompt, generated, tokens in an image, missing, is_prefilling
    ("num_prompt", "num_generated", "image", "missing", "prefilling"),
    [
        (5, 0, 0, 5, True),
        (1, 0, 0, 1, True),
        (5, 0, 4, 1, True),
        (5, 1, 5, 1, False),
        (5, 3, 5, 3, True),
        (5, 3, 7, 1, False),
        (5, 1, 4, 2, True),
    ],
)
def test_what_is_missing_decides_between_prefill_and_decode(
    num_prompt: int, num_generated: int, image: int, missing: int, prefilling: bool
) -> None:
    sequence = sequence_of(num_prompt, num_generated, image)
    assert sequence.num_missing == missing
    assert sequence.is_prefilling is prefilling
    assert sequence.num_generated == num_generated


@pytest.mark.parametrize(
    ("token", "sampling", "context", "reason"),
    [
        (3, {}, 99, None),
        (7, {}, 99, "stop"),
        (7, {"ignore_eos": True}, 99, None),
        (3, {"stop_token_ids": (2, 3)}, 99, "stop"),
        (3, {"stop_token_ids": (2, 3), "ignore_eos": True}, 99, "stop"),
        (3, {"max_tokens": 1}, 99, "length"),
        (7, {"max_tokens": 1}, 99, "stop"),
        (3, {"max_tokens": 2}, 99, None),
        (3, {}, 6, "length"),
        (3, {}, 7, None),
    ],
)
def test_a_generation_ends_for_the_first_reason_that_holds(
    token: int, sampling: dict[str, object], context: int, reason: str | None
) -> None:
    sequence = sequence_of(5, **sampling)
    sequence.tokens.append(token)
    assert sequence.finish_reason_after(token, EOS, context) == reason


def test_ends_are_banned_until_min_tokens() -> None:
    for ignore_eos, banned in ((False, (2, 3, 7)), (True, (2, 3))):
        sequence = sequence_of(5, min_tokens=2, stop_token_ids=(2, 3), ignore_eos=ignore_eos)
        for expected in (banned, banned, ()):
            assert sequence.banned_token_ids(EOS) == expected
            sequence.tokens.append(50)


def test_a_replay_begins_before_the_end_of_the_image() -> None:
    image = SequenceImage(num_tokens=8, blocks=(), partial=b"", state=b"", replay_from=3)
    sequence = Sequence(
        EngineRequest(request_id="a", token_ids=tuple(range(10)), image=image),
        arrival_idx=1,
        max_kv_tokens=100,
        max_pages=25,
    )
    assert (sequence.num_computed, sequence.num_missing) == (3, 7)
    assert (sequence.replay_start, sequence.replay_end) == (3, 8)
    assert sequence.is_replaying
    sequence.num_computed = 8
    assert not sequence.is_replaying
    assert not sequence_of(5, 0, 4).is_replaying
