"""Statuses to errors."""

from __future__ import annotations

import grpc
import pytest

from client.errors import ClientError, InvalidArgument, StreamBroken, from_call
from runtime.errors import FieldViolation, InvalidRequest, Overloaded, Reason
from runtime.status import to_status


def test_details_of_the_server_are_read() -> None:
    status = to_status(
        Overloaded("full", reason=Reason.QUEUE_FULL, metadata={"pool": "a"}, retry_after_s=1.5)
    )
    error = from_call(status.code, status.details, status.trailing_metadata, last_seq=4)
    assert (error.code, error.reason, error.retry_after_s) == (
        "RESOURCE_EXHAUSTED",
        "QUEUE_FULL",
        1.5,
    )
    assert (error.message, error.last_seq, error.metadata) == ("full", 4, {"pool": "a"})
    assert not error.is_resumable


def test_fields_at_fault_are_named() -> None:
    violation = FieldViolation(field="sampling.n", description="only 1")
    status = to_status(InvalidRequest("bad", violations=(violation,)))
    error = from_call(status.code, status.details, status.trailing_metadata, last_seq=0)
    assert error.fields == {"sampling.n": "only 1"}


def test_an_argument_that_cannot_be_sent_is_a_bad_request() -> None:
    error = InvalidArgument("sampling.seed", "-1 is out of range; send 0 to 9")
    assert isinstance(error, ClientError)
    assert isinstance(error, ValueError)
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "BAD_SAMPLING")
    assert str(error) == "sampling.seed: -1 is out of range; send 0 to 9"
    assert error.fields == {"sampling.seed": "-1 is out of range; send 0 to 9"}
    assert not error.is_resumable
    assert InvalidArgument("prompt", "x").reason == "BAD_REQUEST"


def test_a_bare_status_has_no_reason() -> None:
    error = from_call(grpc.StatusCode.UNAVAILABLE, None, (), last_seq=0)
    assert (error.reason, error.message, error.retry_after_s) == ("", "UNAVAILABLE", None)
    assert error.is_resumable


@pytest.mark.parametrize(
    ("error", "resumable"),
    [
        (StreamBroken("cut", last_seq=3), True),
        (ClientError("x", code="ALREADY_EXISTS", reason="DUPLICATE_REQUEST"), True),
        (ClientError("x", code="DEADLINE_EXCEEDED", reason="DEADLINE"), False),
        (ClientError("x", code="INVALID_ARGUMENT", reason="BAD_REQUEST"), False),
    ],
)
def test_only_what_broke_on_the_way_is_resumed(error: ClientError, resumable: bool) -> None:
    assert error.is_resumable == resumable
