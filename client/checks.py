"""What can be checked of a request before it is sent. Pure.

Only what the wire cannot carry is refused here, so that it is a typed error and not a failure deep
inside the transport; what the server would accept is the server's to say.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from client.errors import InvalidArgument
from client.types import ChatMessage, Prompt, Sampling, Targets

MAX_UINT32 = (1 << 32) - 1
MAX_UINT64 = (1 << 64) - 1
_MIN_INT32, _MAX_INT32 = -(1 << 31), (1 << 31) - 1
_COUNTS = ("top_k", "max_tokens", "min_tokens", "logprobs")
_REALS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_SHOWN = 60


def check_text(field: str, value: object) -> None:
    """Raises InvalidArgument unless the value is text that UTF-8 can carry."""
    if not isinstance(value, str):
        raise InvalidArgument(field, f"{_short(value)} is not a text; send a str")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            field,
            f"character {error.start + 1} is {value[error.start]!a}, which is no valid "
            "Unicode text; send text that UTF-8 can encode",
        ) from error


def check_integer(field: str, value: object, high: int, *, low: int = 0) -> None:
    """Raises InvalidArgument unless the value is an integer in [low, high]."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # this is the question
    except TypeError as error:
        raise InvalidArgument(
            field, f"{_short(value)} is not an integer; send {low} to {high}"
        ) from error
    if not low <= number <= high:
        raise InvalidArgument(field, f"{_short(value)} is out of range; send {low} to {high}")


def check_token_ids(field: str, values: Sequence[object]) -> None:
    """Raises InvalidArgument unless all values are 32-bit token ids."""
    for number, value in enumerate(values):
        if not isinstance(value, int) or not 0 <= value <= MAX_UINT32:
            check_integer(f"{field}[{number}]", value, MAX_UINT32)


def check_prompt(prompt: Prompt) -> None:
    """Raises InvalidArgument for a prompt that cannot be sent.

    Raises:
        TypeError: The prompt is neither text nor token ids nor messages.
    """
    if isinstance(prompt, str):
        check_text("prompt", prompt)
        return
    ids = [item for item in prompt if isinstance(item, int)]
    turns = [item for item in prompt if isinstance(item, ChatMessage)]
    if len(ids) + len(turns) < len(prompt) or (ids and turns):
        raise TypeError("a prompt is a text, a list of token ids, or a list of ChatMessage")
    check_token_ids("prompt", ids)
    for number, turn in enumerate(turns):
        check_text(f"prompt[{number}].role", turn.role)
        check_text(f"prompt[{number}].content", turn.content)


def check_sampling(sampling: Sampling) -> None:
    """Raises InvalidArgument for a parameter that cannot be sent."""
    for name in _COUNTS:
        _optional_integer(name, getattr(sampling, name), MAX_UINT32)
    _optional_integer("seed", sampling.seed, MAX_UINT64)
    for name in _REALS:
        value = getattr(sampling, name)
        try:
            _ = None if value is None else value + 0.0
        except (TypeError, OverflowError) as error:
            raise InvalidArgument(
                f"sampling.{name}", f"{_short(value)} is not a number of 64 bits; send a float"
            ) from error
    if not isinstance(sampling.ignore_eos, bool):
        raise InvalidArgument(
            "sampling.ignore_eos", f"{_short(sampling.ignore_eos)} is neither True nor False"
        )
    for name in ("stop", "stop_token_ids"):
        if not isinstance(getattr(sampling, name), tuple | list):
            raise InvalidArgument(
                f"sampling.{name}", f"{_short(getattr(sampling, name))} is not a tuple; send one"
            )
    for number, text in enumerate(sampling.stop):
        check_text(f"sampling.stop[{number}]", text)
    check_token_ids("sampling.stop_token_ids", sampling.stop_token_ids)


def check_priority(priority: int | None) -> None:
    """Raises InvalidArgument unless the priority has 32 bits."""
    if priority is not None:
        check_integer("priority", priority, _MAX_INT32, low=_MIN_INT32)


def allowed_s(timeout_s: float | None, default_s: float) -> float:
    """The seconds a generation may take.

    Raises:
        InvalidArgument: They are no positive number.
    """
    seconds: object = default_s if timeout_s is None else timeout_s
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise InvalidArgument(
            "timeout_s", f"{_short(seconds)} is no positive number of seconds; None for the default"
        )
    return seconds


def check_targets(targets: Targets | None) -> None:
    """Raises InvalidArgument unless the targets are positive numbers of seconds."""
    for name in ("ttft_s", "tpot_s"):
        value = None if targets is None else getattr(targets, name)
        if value is None:
            continue
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidArgument(
                f"targets.{name}", f"{_short(value)} is no positive number of seconds"
            )


def _optional_integer(name: str, value: object, high: int) -> None:
    if value is not None:
        check_integer(f"sampling.{name}", value, high)


def _short(value: object) -> str:
    try:
        text = ascii(value)
    except ValueError:  # Python writes no integers of many thousand digits
        return "an integer of enormous size"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
