"""Errors as HTTP callers see them: a status, OpenAI's error object, headers. Pure.

The tree of `runtime.errors` decides the status; the table below names OpenAI's `type` and `code`
for each reason. Fields are called as in the JSON body, not as in the wire request behind it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from runtime.errors import DisaggError, InvalidRequest, Reason, http_status

_INVALID, _SERVER, _RATE = "invalid_request_error", "server_error", "rate_limit_error"
_NAMES: dict[Reason, tuple[str, str]] = {
    Reason.BAD_REQUEST: (_INVALID, "invalid_value"),
    Reason.BAD_SAMPLING: (_INVALID, "invalid_value"),
    Reason.UNSUPPORTED_PARAMETER: (_INVALID, "unsupported_parameter"),
    Reason.PROMPT_TOO_LONG: (_INVALID, "context_length_exceeded"),
    Reason.CONSTRAINT_REJECTED: (_INVALID, "invalid_grammar"),
    Reason.UNKNOWN_MODEL: (_INVALID, "model_not_found"),
    Reason.DUPLICATE_REQUEST: (_INVALID, "duplicate_request"),
    Reason.NOT_AUTHENTICATED: ("authentication_error", "invalid_api_key"),
    Reason.NOT_ALLOWED: ("permission_error", "not_allowed"),
    Reason.RATE_LIMITED: (_RATE, "rate_limit_exceeded"),
    Reason.QUEUE_FULL: (_RATE, "overloaded"),
    Reason.POOL_FULL: (_RATE, "overloaded"),
    Reason.NO_PREFILL: (_SERVER, "unavailable"),
    Reason.NO_DECODE: (_SERVER, "unavailable"),
    Reason.DRAINING: (_SERVER, "unavailable"),
    Reason.PEER_GONE: (_SERVER, "unavailable"),
    Reason.STORE_DOWN: (_SERVER, "unavailable"),
    Reason.STREAM_INTERRUPTED: (_SERVER, "stream_interrupted"),
    Reason.FIRST_TOKEN_LATE: (_SERVER, "timeout"),
    Reason.DEADLINE: (_SERVER, "timeout"),
    Reason.KV_LAYOUT_DIFFERS: (_SERVER, "layout_mismatch"),
    Reason.MODEL_REVISION_DIFFERS: (_SERVER, "layout_mismatch"),
    Reason.CHECKSUM_DIFFERS: (_SERVER, "kv_corrupt"),
}
_OTHER = (_SERVER, "internal_error")
_OVERLOADED_STATUS = 429

# Names of the wire request that the JSON body spells otherwise; longest first.
_PREFIXES = (("token_ids.ids", "prompt"), ("sampling.", ""), ("chat.", ""))
_ELSEWHERE = (
    (re.compile(r"\bsampling\.(?=[a-z])"), ""),
    # A stream over HTTP has no numbers to go on from.
    (
        re.compile(r"allow more time, or resume it with the same request_id and last_seq"),
        "allow more time by x-request-timeout-ms",
    ),
    (re.compile(r"repeat the call with the same request_id and last_seq=\d+"), "send it again"),
)
_WHOLE = {"text": "prompt", "token_ids": "prompt", "chat": "messages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error answer.

    Attributes:
        body: The JSON object, with `error` as its only member.
    """

    status: int
    body: dict[str, object]
    headers: dict[str, str] = field(default_factory=dict)


class HttpError(InvalidRequest):
    """A fault of the HTTP request itself that has a status of its own, such as 413."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.openai_code = code


def problem_of(error: DisaggError) -> Problem:
    """What the caller gets for an error of the tree."""
    kind, code = _NAMES.get(error.reason, _OTHER)
    status = http_status(error)
    if isinstance(error, HttpError):
        status, code = error.status, error.openai_code
    violations = [(param_of(item.field), item.description) for item in error.violations]
    message = error.message
    # Where the message is nothing but its violations, it is said in the caller's names.
    if violations and error.reason in (Reason.BAD_REQUEST, Reason.BAD_SAMPLING):
        message = "; ".join(f"{name}: {text}" for name, text in violations)
    message = _said_here(message)
    headers = {}
    if error.retry_after_s is not None or status == _OVERLOADED_STATUS:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s or 0.0)))
    param = violations[0][0] if violations else None
    if error.reason is Reason.UNKNOWN_MODEL:
        param = "model"
    return Problem(status=status, body=error_body(message, kind, code, param), headers=headers)


def _said_here(message: str) -> str:
    """A message with the names of the body, and without ways out that other faces have."""
    for pattern, here in _ELSEWHERE:
        message = pattern.sub(here, message)
    return message


def error_body(message: str, kind: str, code: str, param: str | None = None) -> dict[str, object]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def param_of(name: str) -> str:
    """The name of a field in the JSON body, from its name in the wire request."""
    if name in _WHOLE:
        return _WHOLE[name]
    for prefix, replacement in _PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name
