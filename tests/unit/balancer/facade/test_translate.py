"""The zero rules of the published sampling fields, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.facade.translate import native_request
from disagg.facade import vllm_engine_pb2 as pb
from runtime.errors import InvalidRequest, Reason


def native(**sampling: Any) -> Any:
    return native_request(pb.GenerateRequest(text="x", sampling_params=sampling)).sampling


def test_zero_means_the_default_where_there_is_no_presence() -> None:
    sampling = native()
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (1.0, 1.0, 1.0)
    assert (sampling.top_k, sampling.min_p, sampling.n, sampling.min_tokens) == (0, 0.0, 1, 0)
    assert not sampling.HasField("max_tokens")
    assert not sampling.HasField("seed")
    assert not sampling.HasField("logprobs")
    assert native(temperature=0.0).temperature == 0.0
    assert native(max_tokens=0).max_tokens == 0


def test_values_arrive() -> None:
    sampling = native(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        frequency_penalty=0.3,
        presence_penalty=-0.7,
        repetition_penalty=1.1,
        max_tokens=9,
        min_tokens=2,
        stop=["a"],
        stop_token_ids=[5],
        ignore_eos=True,
        n=2,
        logprobs=3,
        skip_special_tokens=False,
    )
    # As they were written, not as 32 bits round them.
    assert (sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (0.9, 0.1, 1.1)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.3, -0.7)
    assert (sampling.top_k, sampling.max_tokens, sampling.min_tokens) == (7, 9, 2)
    assert (list(sampling.stop), list(sampling.stop_token_ids)) == (["a"], [5])
    assert (sampling.ignore_eos, sampling.n, sampling.logprobs) == (True, 2, 3)


@pytest.mark.parametrize(
    ("seed", "widened"), [(7, 7), (0, 0), (-1, (1 << 64) - 1), (-(1 << 31), (1 << 64) - (1 << 31))]
)
def test_seeds_are_widened_with_their_sign(seed: int, widened: int) -> None:
    assert native(seed=seed).seed == widened


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"json_schema": "{}"}, "json_schema"),
        ({"choice": {"choices": ["a"]}}, "choice"),
        ({"json_object": True}, "json_object"),
        ({"logit_bias": {5: 1.0}}, "logit_bias"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_what_changes_an_answer_and_is_not_there_is_refused(
    sampling: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        native(**sampling)
    assert caught.value.reason is Reason.UNSUPPORTED_PARAMETER
    assert caught.value.violations[0].field == field


@pytest.mark.parametrize(
    "fields",
    [
        {"mm_inputs": pb.MultimodalInputs()},
        {"media_refs": pb.MediaRefs()},
        {"extra_mm_inputs": [pb.MultimodalInputs()]},
    ],
)
def test_pictures_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="only text"):
        native_request(pb.GenerateRequest(text="x", **fields))


def test_prompts() -> None:
    tokens = native_request(pb.GenerateRequest(tokenized={"input_ids": [1, 2]}))
    assert list(tokens.token_ids.ids) == [1, 2]
    assert native_request(pb.GenerateRequest(text="x", request_id="r")).request_id == "r"
    with pytest.raises(InvalidRequest, match="send tokenized or text"):
        native_request(pb.GenerateRequest())
