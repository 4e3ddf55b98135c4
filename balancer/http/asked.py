"""What an HTTP body asks for, as wire requests of the native API and how to answer. Pure.

`read_completion` and `read_chat` know every field of OpenAI's two bodies: which are translated,
which have no effect, which values are refused. Nothing is checked here that `balancer.validation`
checks for all faces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from balancer.http.conversation import read_turns
from balancer.http.fields import Fields, shown
from balancer.validation import MAX_LOGPROBS
from disagg.v1 import common_pb2, generation_pb2

COMPLETION_MAX_TOKENS = 16
_MIN_SEED, _MAX_SEED, _SEED_BITS = -(1 << 63), (1 << 64) - 1, (1 << 64) - 1
_MIN_INT32, _MAX_INT32 = -(1 << 31), (1 << 31) - 1
# Known, and without effect on an answer of this system.
_NO_EFFECT = (
    *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier"),
    *("prompt_cache_key", "add_generation_prompt", "spaces_between_special_tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One HTTP request, translated.

    Attributes:
        messages: One wire request per prompt; without a token limit if the caller named none.
        is_chat: Which of the two forms the answer has.
        logprobs: Number of best tokens per position; None for no log-probabilities.
        has_usage: A streamed answer ends with a chunk of counts.
        has_running_usage: Every chunk carries counts.
        echo: The text of the prompt stands before the answer.
        token_ids: The answer carries token ids.
        request_id: Of the body; empty if it has none.
        unknown: Names of fields that mean nothing here.
    """

    messages: tuple[generation_pb2.GenerateRequest, ...]
    is_chat: bool
    is_stream: bool
    logprobs: int | None = None
    has_usage: bool = False
    has_running_usage: bool = False
    echo: bool = False
    token_ids: bool = False
    request_id: str = ""
    unknown: tuple[str, ...] = field(default=())


def read_completion(fields: Fields, *, max_prompts: int) -> Asked:
    """Translates a body of /v1/completions.

    Raises:
        InvalidRequest: A field has the wrong type or a value that is not supported.
    """
    prompts = _prompts(fields, max_prompts)
    logprobs = fields.integer("logprobs", high=MAX_LOGPROBS)
    echo = fields.flag("echo")
    if echo and logprobs is not None:
        raise fields.unsupported(
            "echo", "log-probabilities of the prompt are not computed; send echo or logprobs"
        )
    fields.refuse("suffix", allowed=("",), way_out="leave it out")
    fields.refuse("best_of", allowed=(1,), way_out="send best_of = 1, or several requests")
    max_tokens = fields.integer("max_tokens")
    sampling = _sampling(
        fields,
        max_tokens=COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens,
        logprobs=logprobs,
    )
    return _asked(fields, prompts, sampling, is_chat=False, logprobs=logprobs, echo=echo)


def read_chat(fields: Fields) -> Asked:
    """Translates a body of /v1/chat/completions.

    Raises:
        InvalidRequest: A field has the wrong type or a value that is not supported.
    """
    prompt = generation_pb2.GenerateRequest(chat=read_turns(fields))
    logprobs = fields.integer("top_logprobs", high=MAX_LOGPROBS)
    if fields.flag("logprobs"):
        logprobs = logprobs or 0
    elif logprobs is not None:
        raise fields.fault("top_logprobs", "goes with logprobs = true; set that, or leave this out")
    fields.refuse("functions", allowed=([],), way_out="send tools")
    fields.refuse("function_call", allowed=("none", "auto"), way_out="leave it out")
    fields.refuse("modalities", allowed=(["text"],), way_out='send ["text"]')
    fields.refuse("audio", allowed=(), way_out="leave it out")
    fields.refuse("continue_final_message", allowed=(False,), way_out="send false")
    max_tokens = fields.integer("max_completion_tokens")
    older = fields.integer("max_tokens")
    sampling = _sampling(
        fields, max_tokens=older if max_tokens is None else max_tokens, logprobs=logprobs
    )
    return _asked(fields, (prompt,), sampling, is_chat=True, logprobs=logprobs, echo=False)


def _asked(
    fields: Fields,
    prompts: Sequence[generation_pb2.GenerateRequest],
    sampling: common_pb2.SamplingParams,
    *,
    is_chat: bool,
    logprobs: int | None,
    echo: bool,
) -> Asked:
    is_stream = fields.flag("stream")
    options = fields.child("stream_options")
    if options is not None and not is_stream:
        raise fields.fault("stream_options", "goes with stream = true; set that, or leave this out")
    model = fields.text("model") or ""
    salt = fields.text("cache_salt") or ""
    priority = fields.integer("priority", low=_MIN_INT32, high=_MAX_INT32)
    for prompt in prompts:
        prompt.model, prompt.cache_salt = model, salt
        prompt.sampling.CopyFrom(sampling)
        if priority is not None:
            prompt.priority = priority
    fields.ignore(_NO_EFFECT)
    return Asked(
        messages=tuple(prompts),
        is_chat=is_chat,
        is_stream=is_stream,
        logprobs=logprobs,
        has_usage=options is not None and options.flag("include_usage"),
        has_running_usage=options is not None and options.flag("continuous_usage_stats"),
        echo=echo,
        token_ids=fields.flag("return_token_ids"),
        request_id=fields.text("request_id") or "",
        unknown=tuple(fields.unknown()),
    )


def _sampling(
    fields: Fields, *, max_tokens: int | None, logprobs: int | None
) -> common_pb2.SamplingParams:
    number = fields.integer("n", low=1)
    sampling = common_pb2.SamplingParams(
        # OpenAI's default; the native API is greedy unless told otherwise.
        temperature=1.0,
        min_tokens=fields.integer("min_tokens"),
        stop=fields.texts("stop"),
        stop_token_ids=fields.integers("stop_token_ids"),
        ignore_eos=fields.flag("ignore_eos"),
        max_tokens=max_tokens,
        logprobs=logprobs,
        n=number,
    )
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        if (value := fields.real(name)) is not None:
            setattr(sampling, name, value)
    for name in ("presence_penalty", "frequency_penalty"):
        if (value := fields.real(name)) is not None:
            setattr(sampling, name, value)
    if (top_k := fields.integer("top_k", low=-1)) is not None:
        sampling.top_k = max(0, top_k)
    if (seed := fields.integer("seed", low=_MIN_SEED, high=_MAX_SEED)) is not None:
        sampling.seed = seed & _SEED_BITS  # negative seeds keep their 64 bits
    fields.refuse("logit_bias", allowed=({},), way_out="leave it out")
    fields.refuse("response_format", allowed=({"type": "text"},), way_out='send {"type": "text"}')
    for name in ("structured_outputs", "guided_json", "guided_regex", "guided_choice"):
        fields.refuse(name, allowed=(), way_out="constrained output is not part of this version")
    fields.refuse("use_beam_search", allowed=(False,), way_out="send false")
    fields.refuse("include_stop_str_in_output", allowed=(False,), way_out="send false")
    fields.refuse("skip_special_tokens", allowed=(True,), way_out="send true")
    fields.refuse("truncate_prompt_tokens", allowed=(), way_out="send a prompt that fits")
    return sampling


def _prompts(fields: Fields, max_prompts: int) -> list[generation_pb2.GenerateRequest]:
    """One wire request per prompt: text, list of texts, token ids, list of lists of token ids."""
    value = fields.value("prompt")
    make = generation_pb2.GenerateRequest
    if value is None:
        raise fields.fault("prompt", "there is none; send a string or token ids")
    if isinstance(value, str):
        return [make(text=fields.as_text("prompt", value))]
    if not isinstance(value, list) or not value:
        raise fields.fault("prompt", f"{shown(value)} is neither a string nor a list of prompts")
    if isinstance(value[0], int):
        return [make(token_ids={"ids": fields.as_integers("prompt", value)})]
    if len(value) > max_prompts:
        raise fields.fault(
            "prompt", f"{len(value)} prompts in one request; send at most {max_prompts}"
        )
    prompts = []
    for number, item in enumerate(value):
        name = f"prompt[{number}]"
        if isinstance(item, list):
            prompts.append(make(token_ids={"ids": fields.as_integers(name, item)}))
        else:
            prompts.append(make(text=fields.as_text(name, item)))
    return prompts
