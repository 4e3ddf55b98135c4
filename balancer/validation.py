"""Checks of what callers send, before anything is queued.

`check_generate` turns a wire request into a `Request` or raises InvalidRequest with every field at
fault, what was found there and what would be accepted. Defaults are filled in here, once: after
this the seed and the token limit are decided and never change over attempts.

Tokenising may take a while on a long prompt, so the caller runs it off the event loop and passes
the result; everything in this module is cheap.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Sequence

from balancer.journey.request import DEFAULT_MAX_TOKENS, Request, Sampling, seed_of
from balancer.text import ModelCard
from disagg.v1 import common_pb2, generation_pb2
from runtime.errors import FieldViolation, InvalidRequest, NotFound, Reason

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKENS = 256
MAX_SALT_BYTES = 256


def check_request_id(request_id: str, field: str = "request_id") -> str:
    """Returns the id, or a fresh one if it is empty.

    Args:
        field: What the caller calls it.

    Raises:
        InvalidRequest: The id has a character or a length that is not allowed.
    """
    if not request_id:
        return str(uuid.uuid4())
    if not _REQUEST_ID.fullmatch(request_id):
        raise bad_field(
            field,
            f"{_short(request_id)} is not an id: use 1 to 128 characters of A-Z a-z 0-9 . _ : -",
        )
    return request_id


def check_model(model: str, card: ModelCard) -> None:
    """Raises NotFound unless `model` is empty or the model that is served."""
    if model and model != card.name:
        raise NotFound(
            f"model: {_short(model)} is not served here; use {card.name!r} or leave it empty",
            reason=Reason.UNKNOWN_MODEL,
        )


def check_generate(
    message: generation_pb2.GenerateRequest,
    *,
    request_id: str,
    token_ids: Sequence[int],
    card: ModelCard,
    arrived_at: float,
    deadline: float,
) -> Request:
    """The checked request; `token_ids` is its prompt, already encoded.

    Raises:
        InvalidRequest: BAD_REQUEST, BAD_SAMPLING, UNSUPPORTED_PARAMETER or PROMPT_TOO_LONG.
    """
    if not token_ids:
        raise bad_field("prompt", "the prompt is empty; send text, chat or token_ids")
    if len(message.cache_salt.encode("utf-8")) > MAX_SALT_BYTES:
        raise bad_field("cache_salt", f"longer than {MAX_SALT_BYTES} bytes; send a digest of it")
    room = card.max_model_len - len(token_ids)
    if room < 1:
        raise InvalidRequest(
            f"prompt: {len(token_ids)} tokens leave no room for an answer in the context of "
            f"{card.max_model_len} tokens; send at most {card.max_model_len - 1}",
            reason=Reason.PROMPT_TOO_LONG,
            violations=(FieldViolation(field="prompt", description="does not fit in the context"),),
        )
    sampling = _check_sampling(message.sampling, request_id=request_id, room=room, card=card)
    if sampling.max_tokens > room:
        raise InvalidRequest(
            f"sampling.max_tokens: {len(token_ids)} prompt tokens and {sampling.max_tokens} new "
            f"ones exceed the context of {card.max_model_len} tokens; ask for at most {room}",
            reason=Reason.PROMPT_TOO_LONG,
            violations=(
                FieldViolation(field="sampling.max_tokens", description=f"at most {room} fit"),
            ),
        )
    return Request(
        request_id=request_id,
        token_ids=tuple(token_ids),
        sampling=sampling,
        arrived_at=arrived_at,
        deadline=deadline,
        last_seq=message.last_seq,
        cache_salt=message.cache_salt,
        priority=message.priority,
        ttft_slo_s=_target(message, "ttft_slo_s"),
        tpot_slo_s=_target(message, "tpot_slo_s"),
    )


def _target(message: generation_pb2.GenerateRequest, name: str) -> float | None:
    if not message.HasField(name):
        return None
    value: float = getattr(message, name)
    if not (math.isfinite(value) and value > 0):
        raise bad_field(name, f"{value:g}; send seconds above 0, or leave it out")
    return value


def bad_field(field: str, description: str) -> InvalidRequest:
    """A BAD_REQUEST with one field at fault."""
    return InvalidRequest(
        f"{field}: {description}",
        violations=(FieldViolation(field=field, description=description),),
    )


def _check_sampling(
    message: common_pb2.SamplingParams, *, request_id: str, room: int, card: ModelCard
) -> Sampling:
    if message.HasField("n") and message.n != 1:
        raise InvalidRequest(
            f"sampling.n: {message.n} choices are not supported; send n = 1, or several requests",
            reason=Reason.UNSUPPORTED_PARAMETER,
            violations=(FieldViolation(field="sampling.n", description="only 1 is supported"),),
        )
    faults = [
        *_real(message, "temperature", 0.0, math.inf, "0 (greedy) or above"),
        *_real(message, "top_p", 0.0, 1.0, "in (0, 1]; 1 keeps all tokens", open_low=True),
        *_real(message, "min_p", 0.0, 1.0, "in [0, 1]; 0 drops nothing"),
        *_real(message, "presence_penalty", -2.0, 2.0, "in [-2, 2]; 0 is off"),
        *_real(message, "frequency_penalty", -2.0, 2.0, "in [-2, 2]; 0 is off"),
        *_real(message, "repetition_penalty", 0.0, math.inf, "above 0; 1 is off", open_low=True),
        *_count(message, "logprobs", MAX_LOGPROBS),
        *_stops(message, card),
    ]
    has_limit = message.HasField("max_tokens")
    max_tokens = message.max_tokens if has_limit else min(DEFAULT_MAX_TOKENS, room)
    if message.min_tokens > max_tokens:
        faults.append(
            ("min_tokens", f"{message.min_tokens} exceeds max_tokens {max_tokens}; lower it")
        )
    if faults:
        raise InvalidRequest(
            "; ".join(f"sampling.{name}: {text}" for name, text in faults),
            reason=Reason.BAD_SAMPLING,
            violations=tuple(
                FieldViolation(field=f"sampling.{name}", description=text) for name, text in faults
            ),
        )
    return Sampling(
        seed=message.seed if message.HasField("seed") else seed_of(request_id),
        max_tokens=max_tokens,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        min_p=message.min_p,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=(
            message.repetition_penalty if message.HasField("repetition_penalty") else 1.0
        ),
        stop=tuple(message.stop),
    )


_Fault = tuple[str, str]


def _real(
    message: common_pb2.SamplingParams,
    name: str,
    low: float,
    high: float,
    wanted: str,
    *,
    open_low: bool = False,
) -> list[_Fault]:
    if not message.HasField(name):
        return []
    value: float = getattr(message, name)
    if not math.isfinite(value):
        return [(name, f"{value} is not a finite number; send a value {wanted}")]
    if value < low or value > high or (open_low and value == low):
        return [(name, f"{value:g} is out of range; send a value {wanted}")]
    return []


def _count(message: common_pb2.SamplingParams, name: str, high: int) -> list[_Fault]:
    if message.HasField(name) and getattr(message, name) > high:
        return [(name, f"{getattr(message, name)} is out of range; send at most {high}")]
    return []


def _stops(message: common_pb2.SamplingParams, card: ModelCard) -> list[_Fault]:
    faults: list[_Fault] = []
    if len(message.stop) > MAX_STOPS:
        faults.append(("stop", f"{len(message.stop)} texts; send at most {MAX_STOPS}"))
    for number, text in enumerate(message.stop[:MAX_STOPS]):
        if not 0 < len(text) <= MAX_STOP_CHARS:
            faults.append(
                (f"stop[{number}]", f"{len(text)} characters; send 1 to {MAX_STOP_CHARS}")
            )
    if len(message.stop_token_ids) > MAX_STOP_TOKENS:
        count = len(message.stop_token_ids)
        faults.append(("stop_token_ids", f"{count} ids; send at most {MAX_STOP_TOKENS}"))
    for number, token_id in enumerate(message.stop_token_ids[:MAX_STOP_TOKENS]):
        if token_id >= card.vocab_size:
            faults.append(
                (f"stop_token_ids[{number}]", f"{token_id} is not in [0, {card.vocab_size})")
            )
    return faults


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
