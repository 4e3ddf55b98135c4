"""Errors as HTTP callers see them: the table of the conventions, row by row."""

from __future__ import annotations

import pytest

from balancer.http.errors import HttpError, param_of, problem_of
from runtime.errors import CLASS_OF_REASON, FieldViolation, InvalidRequest, Overloaded, Reason

ROWS = {
    "BAD_REQUEST": (400, "invalid_request_error", "invalid_value"),
    "BAD_SAMPLING": (400, "invalid_request_error", "invalid_value"),
    "UNSUPPORTED_PARAMETER": (400, "invalid_request_error", "unsupported_parameter"),
    "PROMPT_TOO_LONG": (400, "invalid_request_error", "context_length_exceeded"),
    "CONSTRAINT_REJECTED": (400, "invalid_request_error", "invalid_grammar"),
    "UNKNOWN_MODEL": (404, "invalid_request_error", "model_not_found"),
    "NOT_AUTHENTICATED": (401, "authentication_error", "invalid_api_key"),
    "NOT_ALLOWED": (403, "permission_error", "not_allowed"),
    "RATE_LIMITED": (429, "rate_limit_error", "rate_limit_exceeded"),
    "QUEUE_FULL": (429, "rate_limit_error", "overloaded"),
    "POOL_FULL": (429, "rate_limit_error", "overloaded"),
    "NO_PREFILL": (503, "server_error", "unavailable"),
    "NO_DECODE": (503, "server_error", "unavailable"),
    "DRAINING": (503, "server_error", "unavailable"),
    "PEER_GONE": (503, "server_error", "unavailable"),
    "STORE_DOWN": (503, "server_error", "unavailable"),
    "FIRST_TOKEN_LATE": (504, "server_error", "timeout"),
    "DEADLINE": (504, "server_error", "timeout"),
    "KV_LAYOUT_DIFFERS": (500, "server_error", "layout_mismatch"),
    "MODEL_REVISION_DIFFERS": (500, "server_error", "layout_mismatch"),
    "CHECKSUM_DIFFERS": (500, "server_error", "kv_corrupt"),
    "STREAM_INTERRUPTED": (503, "server_error", "stream_interrupted"),
    "INVARIANT_BROKEN": (500, "server_error", "internal_error"),
    "DUPLICATE_REQUEST": (409, "invalid_request_error", "duplicate_request"),
}
# No user sees them.
INTERNAL = {"CALLER_LEFT", "BLOCK_EVICTED", "LEASE_LOST", "STALE_ATTEMPT"}
INTERNAL |= {"EVENTS_LOST", "EVENTS_GONE"}


@pytest.mark.parametrize("reason", sorted(set(Reason) - INTERNAL))
def test_every_reason_has_its_status_type_and_code(reason: str) -> None:
    error = CLASS_OF_REASON[Reason(reason)]("what happened", reason=Reason(reason))
    problem = problem_of(error)
    body = problem.body["error"]
    assert isinstance(body, dict)
    assert (problem.status, body["type"], body["code"]) == ROWS[reason]
    assert body["message"] == "what happened"


def test_the_hint_becomes_whole_seconds_and_overload_always_has_one() -> None:
    assert problem_of(Overloaded("full", retry_after_s=1.2)).headers == {"retry-after": "2"}
    assert problem_of(Overloaded("full")).headers == {"retry-after": "1"}
    assert problem_of(InvalidRequest("bad")).headers == {}


def test_fields_are_called_as_in_the_body() -> None:
    error = InvalidRequest(
        "sampling.top_p: 2 is out of range; sampling.n: no",
        reason=Reason.BAD_SAMPLING,
        violations=(
            FieldViolation(field="sampling.top_p", description="2 is out of range"),
            FieldViolation(field="token_ids.ids[3]", description="no such token"),
        ),
    )
    body = problem_of(error).body["error"]
    assert body == {
        "message": "top_p: 2 is out of range; prompt[3]: no such token",
        "type": "invalid_request_error",
        "param": "top_p",
        "code": "invalid_value",
    }
    assert [param_of(name) for name in ("text", "chat.messages[0].role", "chat", "model")] == [
        "prompt",
        "messages[0].role",
        "messages",
        "model",
    ]


def test_a_fault_of_http_has_a_status_of_its_own() -> None:
    problem = problem_of(HttpError(413, "request_too_large", "body: longer than 4 bytes"))
    body = problem.body["error"]
    assert isinstance(body, dict)
    assert (problem.status, body["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("reason", "said", "here"),
    [
        ("PROMPT_TOO_LONG", "sampling.max_tokens: 9 exceed 8", "max_tokens: 9 exceed 8"),
        (
            "DEADLINE",
            "too long; allow more time, or resume it with the same request_id and last_seq",
            "too long; allow more time by x-request-timeout-ms",
        ),
        (
            "STREAM_INTERRUPTED",
            "broke; repeat the call with the same request_id and last_seq=12",
            "broke; send it again",
        ),
    ],
)
def test_ways_out_are_those_of_this_face(reason: str, said: str, here: str) -> None:
    problem = problem_of(CLASS_OF_REASON[Reason(reason)](said, reason=Reason(reason)))
    assert problem.body["error"]["message"] == here  # type: ignore[index]
