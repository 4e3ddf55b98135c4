"""Bad input: every case has its reason, names its field, and says what would do."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from balancer.journey.request import DEFAULT_MAX_TOKENS, seed_of
from balancer.text import ModelCard
from balancer.validation import check_generate, check_model, check_request_id
from disagg.v1 import generation_pb2
from runtime.errors import InvalidRequest, NotFound, Reason

CARD = ModelCard(name="m", vocab_size=100, max_model_len=64)


def check(prompt: int | list[int] = 10, /, **fields: Any):
    ids = list(range(prompt)) if isinstance(prompt, int) else prompt
    return check_generate(
        generation_pb2.GenerateRequest(**fields),
        request_id="r",
        token_ids=ids,
        card=CARD,
        arrived_at=1.0,
        deadline=2.0,
    )


def test_defaults_are_decided_once() -> None:
    request = check()
    sampling = request.sampling
    assert sampling.seed == seed_of("r")
    assert sampling.max_tokens == min(DEFAULT_MAX_TOKENS, 54)
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.0, 1.0, 1.0)
    assert sampling.logprobs is None
    assert (request.last_seq, request.priority, request.cache_salt) == (0, 0, "")


def test_what_is_given_is_kept() -> None:
    request = check(
        sampling={
            "seed": 0,
            "max_tokens": 0,
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.25,
            "min_p": 0.125,
            "stop_token_ids": [99],
            "ignore_eos": True,
            "logprobs": 0,
            "presence_penalty": -2.0,
            "frequency_penalty": 2.0,
            "repetition_penalty": 1.5,
            "n": 1,
            "stop": ["x"],
        },
        last_seq=4,
        priority=-3,
        cache_salt="t",
    )
    sampling = request.sampling
    assert (sampling.seed, sampling.max_tokens, sampling.logprobs) == (0, 0, 0)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.25)
    assert (sampling.min_p, sampling.stop_token_ids, sampling.ignore_eos) == (0.125, (99,), True)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2.0, 2.0)
    assert (sampling.repetition_penalty, sampling.stop) == (1.5, ("x",))
    assert (request.last_seq, request.priority, request.cache_salt) == (4, -3, "t")


BAD_SAMPLING = [
    ("temperature", -0.1, "-0.1 is out of range; send a value 0 (greedy) or above"),
    ("temperature", math.nan, "nan is not a finite number"),
    ("temperature", math.inf, "inf is not a finite number"),
    ("top_p", 0.0, "0 is out of range; send a value in (0, 1]"),
    ("top_p", 1.1, "1.1 is out of range"),
    ("top_p", math.nan, "not a finite number"),
    ("min_p", -0.5, "in [0, 1]"),
    ("min_p", 2.0, "in [0, 1]"),
    ("presence_penalty", 2.5, "in [-2, 2]"),
    ("frequency_penalty", -math.inf, "not a finite number"),
    ("repetition_penalty", 0.0, "above 0"),
    ("logprobs", 21, "send at most 20"),
    ("min_tokens", 65, "65 exceeds max_tokens 54"),
    ("stop_token_ids", [5, 100], "100 is not in [0, 100)"),
    ("stop", [""], "0 characters; send 1 to 256"),
    ("stop", ["x" * 257], "257 characters"),
    ("stop", ["x"] * 17, "17 texts; send at most 16"),
    ("stop_token_ids", [1] * 257, "257 ids"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_SAMPLING)
def test_bad_sampling(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(sampling={name: value})
    assert caught.value.reason is Reason.BAD_SAMPLING
    assert message in caught.value.message
    assert caught.value.message.startswith(f"sampling.{name}")
    assert caught.value.violations[0].field.startswith(f"sampling.{name}")


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(sampling={"temperature": -1.0, "top_p": 2.0})
    assert [item.field for item in caught.value.violations] == [
        "sampling.temperature",
        "sampling.top_p",
    ]


@pytest.mark.parametrize("n", [0, 2])
def test_several_choices_are_unsupported(n: int) -> None:
    with pytest.raises(InvalidRequest, match="send n = 1") as caught:
        check(sampling={"n": n})
    assert caught.value.reason is Reason.UNSUPPORTED_PARAMETER


def test_an_empty_prompt() -> None:
    with pytest.raises(InvalidRequest, match="prompt is empty") as caught:
        check([])
    assert caught.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("length", [31, 32, 33, 63])
def test_prompts_around_borders_are_fine(length: int) -> None:
    assert len(check(length).token_ids) == length
    assert check(length).sampling.max_tokens == min(64, 64 - length)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        (64, None, "64 tokens leave no room .* send at most 63"),
        (65, None, "65 tokens leave no room"),
        (
            60,
            5,
            "60 prompt tokens and 5 new ones exceed the context of 64 tokens; ask for at most 4",
        ),
        (4, 2**32 - 1, "4294967295 new ones exceed the context of 64 tokens; ask for at most 60"),
    ],
)
def test_too_long(prompt: int, max_tokens: int | None, message: str) -> None:
    sampling = {} if max_tokens is None else {"max_tokens": max_tokens}
    with pytest.raises(InvalidRequest, match=message) as caught:
        check(prompt, sampling=sampling)
    assert caught.value.reason is Reason.PROMPT_TOO_LONG


def test_targets_are_seconds_above_zero() -> None:
    assert (check().ttft_slo_s, check().tpot_slo_s) == (None, None)
    given = check(ttft_slo_s=0.5, tpot_slo_s=0.02)
    assert (given.ttft_slo_s, given.tpot_slo_s) == (0.5, 0.02)
    for name in ("ttft_slo_s", "tpot_slo_s"):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidRequest, match=f"{name}: .* seconds above 0"):
                check(**{name: value})


def test_a_long_salt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="longer than 256 bytes"):
        check(cache_salt="ä" * 129)
    assert check(cache_salt="ä" * 128).cache_salt


@pytest.mark.parametrize("request_id", ["a b", "x" * 129, "é", "a/b", "a\n"])
def test_bad_request_ids(request_id: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an id: use 1 to 128 characters") as caught:
        check_request_id(request_id)
    assert caught.value.violations[0].field == "request_id"


@given(st.text(alphabet="aZ9._:-", min_size=1, max_size=128))
def test_good_request_ids_are_kept(request_id: str) -> None:
    assert check_request_id(request_id) == request_id


def test_a_missing_id_is_made() -> None:
    made = {check_request_id("") for _ in range(3)}
    assert len(made) == 3
    assert all(re.fullmatch(r"[0-9a-f-]{36}", item) for item in made)


def test_models() -> None:
    check_model("", CARD)
    check_model("m", CARD)
    with pytest.raises(NotFound, match="'other' is not served here; use 'm'") as caught:
        check_model("other", CARD)
    assert caught.value.reason is Reason.UNKNOWN_MODEL
