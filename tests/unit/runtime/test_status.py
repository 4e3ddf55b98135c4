"""Errors over the wire and back."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from runtime import status
from runtime.errors import (
    CLASS_OF_REASON,
    Bug,
    CallerLeft,
    FieldViolation,
    InvalidRequest,
    Overloaded,
    Reason,
    TooLate,
    Unavailable,
)


class FailedCall(grpc.RpcError):
    """A finished call as gRPC hands it to the caller."""

    def __init__(self, wire: status.WireStatus) -> None:
        self.wire = wire

    def code(self) -> grpc.StatusCode:
        return self.wire.code

    def details(self) -> str:
        return self.wire.details

    def trailing_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.wire.trailing_metadata


@given(
    reason=st.sampled_from(Reason),
    text=st.text(max_size=200),
    metadata=st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=50)),
    retry_ms=st.none() | st.integers(0, 100_000),
)
def test_what_is_sent_is_what_arrives(
    reason: Reason, text: str, metadata: dict[str, str], retry_ms: int | None
) -> None:
    sent = CLASS_OF_REASON[reason](
        text,
        reason=reason,
        metadata=metadata,
        retry_after_s=None if retry_ms is None else retry_ms / 1000,
        violations=(FieldViolation(field="top_p", description="must be in (0, 1]"),),
    )
    wire = status.to_status(sent, request_id="r-1")
    got = status.from_rpc_error(FailedCall(wire))
    assert type(got) is type(sent)
    assert (got.reason, got.message, got.metadata) == (sent.reason, text, metadata)
    assert got.retry_after_s == sent.retry_after_s
    assert got.violations == sent.violations
    assert isinstance(got.__cause__, FailedCall)


def test_a_status_carries_exactly_one_error_info_and_the_request() -> None:
    proto = status.to_proto(Unavailable("x", retry_after_s=0.5), request_id="r-1")
    kinds = [detail.TypeName() for detail in proto.details]
    assert kinds == ["google.rpc.ErrorInfo", "google.rpc.RetryInfo", "google.rpc.RequestInfo"]
    info = error_details_pb2.ErrorInfo()
    proto.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("disagg", "PEER_GONE")


def test_the_delay_travels_as_push_back_too() -> None:
    trailers = dict(status.to_status(Overloaded("x", retry_after_s=1.25)).trailing_metadata)
    assert trailers[status.PUSHBACK_KEY] == "1250"
    assert status.PUSHBACK_KEY not in dict(status.to_status(Overloaded("x")).trailing_metadata)


def test_details_stay_below_the_metadata_budget() -> None:
    error = InvalidRequest(
        "y" * 100_000,
        metadata={f"key{n}": "z" * 1000 for n in range(50)},
        violations=tuple(
            FieldViolation(field=f"field{n}", description="v" * 1000) for n in range(100)
        ),
    )
    wire = status.to_status(error, request_id="r" * 128)
    size = sum(len(key) + len(value) for key, value in wire.trailing_metadata)
    assert size + len(wire.details) < 8192
    assert wire.details.endswith("...")


@pytest.mark.parametrize(
    ("code", "cls", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable, Reason.PEER_GONE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, TooLate, Reason.DEADLINE),
        (grpc.StatusCode.CANCELLED, CallerLeft, Reason.CALLER_LEFT),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Overloaded, Reason.QUEUE_FULL),
        (grpc.StatusCode.UNKNOWN, Bug, Reason.INVARIANT_BROKEN),
        (grpc.StatusCode.UNIMPLEMENTED, Bug, Reason.INVARIANT_BROKEN),
    ],
)
def test_bare_codes(code: grpc.StatusCode, cls: type, reason: Reason) -> None:
    got = status.from_rpc_error(FailedCall(status.WireStatus(code, "text", ())))
    assert type(got) is cls
    assert got.reason is reason
    assert "text" in got.message


def test_a_status_that_contradicts_the_call_is_not_believed() -> None:
    wire = status.to_status(Overloaded("full"))
    rewritten = status.WireStatus(grpc.StatusCode.UNAVAILABLE, "full", wire.trailing_metadata)
    assert type(status.from_rpc_error(FailedCall(rewritten))) is Unavailable


def test_an_unknown_reason_keeps_the_meaning_of_its_code() -> None:
    proto = status.to_proto(Unavailable("x"))
    info = error_details_pb2.ErrorInfo(reason="FROM_THE_FUTURE", domain="disagg")
    del proto.details[:]
    proto.details.add().Pack(info)
    assert type(status.from_proto(proto)) is Unavailable
    assert type(status.from_proto(status_pb2.Status(code=99, message="odd"))) is Bug
