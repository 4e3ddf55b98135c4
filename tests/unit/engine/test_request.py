"""Sampling parameters are checked field by field; the status machine is the table."""

from __future__ import annotations

import itertools
import math

import pytest

from engine.handoff import SequenceImage
from engine.request import (
    TRANSITIONS,
    ChunkDone,
    EngineRequest,
    InvalidRequest,
    RequestFailed,
    RequestFinished,
    SamplingError,
    SamplingParams,
    SequenceStatus,
    TokenOut,
    is_final,
)
from engine.sequence import IllegalTransition, Sequence

VOCAB = 100
NAN, INF = math.nan, math.inf

BAD = [
    ("temperature", -0.1),
    ("temperature", NAN),
    ("temperature", INF),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_p", 0.0),
    ("top_p", -0.5),
    ("top_p", 1.0001),
    ("top_p", NAN),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("min_p", INF),
    ("seed", -1),
    ("seed", 2**64),
    ("max_tokens", -1),
    ("max_tokens", True),
    ("min_tokens", -1),
    ("min_tokens", 65),
    ("logprobs", -1),
    ("logprobs", 21),
    ("presence_penalty", 2.1),
    ("presence_penalty", NAN),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", -INF),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", INF),
]
GOOD = [
    {},
    {"temperature": 0},
    {"temperature": 1e9, "top_p": 1e-9, "min_p": 1.0, "top_k": 10**9},
    {"seed": 2**64 - 1, "max_tokens": 0},
    {"min_tokens": 64, "logprobs": 0},
    {"logprobs": 20, "presence_penalty": -2.0, "frequency_penalty": 2, "repetition_penalty": 0.1},
    {"stop_token_ids": (0, VOCAB - 1)},
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_named_with_its_field_and_a_way_out(field: str, value: object) -> None:
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**{field: value}).validate(VOCAB)  # type: ignore[arg-type]
    assert caught.value.field_name == field
    assert str(caught.value).startswith(f"{field} is {value!r}: ")
    assert any(word in str(caught.value) for word in ("give", "lower"))


@pytest.mark.parametrize("token_id", [-1, VOCAB, VOCAB + 7])
def test_stop_tokens_lie_in_the_vocabulary(token_id: int) -> None:
    with pytest.raises(SamplingError, match=rf"stop_token_ids is {token_id}: .*\[0, {VOCAB}\)"):
        SamplingParams(stop_token_ids=(3, token_id)).validate(VOCAB)


@pytest.mark.parametrize("fields", GOOD)
def test_edges_of_the_ranges_are_accepted(fields: dict[str, object]) -> None:
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    params.validate(VOCAB)
    assert params.has_penalties is any("penalty" in name for name in fields)


S = SequenceStatus
LIVE = [S.WAITING, S.PREFILLING, S.DECODING, S.SWAPPED]
ENDS = [S.FINISHED, S.ABORTED, S.FAILED]
ARROWS = {
    (S.WAITING, S.PREFILLING),
    (S.WAITING, S.DECODING),
    (S.PREFILLING, S.DECODING),
    (S.PREFILLING, S.WAITING),
    (S.PREFILLING, S.SWAPPED),
    (S.DECODING, S.WAITING),
    (S.DECODING, S.SWAPPED),
    (S.SWAPPED, S.PREFILLING),
    (S.SWAPPED, S.DECODING),
    *itertools.product(LIVE, ENDS),
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(S, S)))
def test_status_changes_follow_the_diagram(source: S, target: S) -> None:
    request = EngineRequest(request_id="a", token_ids=(1, 2))
    sequence = Sequence(request, arrival_idx=1, max_kv_tokens=9, max_pages=3)
    sequence.status = source
    if (source, target) in ARROWS:
        sequence.move_to(target)
        assert sequence.status is target
    else:
        with pytest.raises(IllegalTransition, match=f"'a': {source.value} to {target.value}"):
            sequence.move_to(target)
        assert sequence.status is source
    assert (source in ENDS) is (not TRANSITIONS[source])


def test_final_events_are_told_from_the_others() -> None:
    assert not is_final(ChunkDone(request_id="a", computed_tokens=3))
    assert not is_final(TokenOut(request_id="a", token_id=1, number=1))
    assert is_final(TokenOut(request_id="a", token_id=1, number=1, is_last=True))
    assert is_final(RequestFinished(request_id="a", finish_reason="abort", num_generated=0))
    assert is_final(RequestFailed(request_id="a", error=ValueError()))


@pytest.mark.parametrize("begin", [0, 8, 9])
def test_a_replay_begins_inside_its_image(begin: int) -> None:
    image = SequenceImage(num_tokens=8, blocks=(), partial=b"", state=b"", replay_from=begin)
    with pytest.raises(InvalidRequest, match=f"replayed from token {begin}"):
        EngineRequest(request_id="a", token_ids=(1,) * 9, image=image).validate(64, 200)
