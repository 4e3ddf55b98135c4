"""Errors over the wire: the tree of `runtime.errors` to google.rpc.Status and back.

Every status carries exactly one ErrorInfo (reason, domain `disagg`), RetryInfo when a repetition
can help after a delay (also as the trailer `grpc-retry-pushback-ms`, which gRPC's own retries
obey), BadRequest for fields at fault and RequestInfo when the request is known. Code and message of
the status equal those of the call: readers refuse a pair that differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from runtime.errors import (
    CLASS_OF_REASON,
    DOMAIN,
    Bug,
    CallerLeft,
    DisaggError,
    FieldViolation,
    InvalidRequest,
    Overloaded,
    Reason,
    TooLate,
    Unavailable,
)

DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

# A call's metadata is refused at random above 8 KiB, and the message travels twice.
MAX_MESSAGE_CHARS = 1000
MAX_VIOLATIONS = 12
MAX_DESCRIPTION_CHARS = 160


@dataclass(frozen=True, slots=True)
class WireStatus(grpc.Status):
    """What `ServicerContext.abort_with_status` takes."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def to_proto(error: DisaggError, *, request_id: str = "") -> status_pb2.Status:
    """The google.rpc.Status of an error."""
    details: list[message.Message] = [
        error_details_pb2.ErrorInfo(
            reason=error.reason, domain=DOMAIN, metadata=_bounded(error.metadata)
        )
    ]
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(
                        field=violation.field,
                        description=_cut(violation.description, MAX_DESCRIPTION_CHARS),
                    )
                    for violation in error.violations[:MAX_VIOLATIONS]
                ]
            )
        )
    if request_id:
        details.append(error_details_pb2.RequestInfo(request_id=request_id))
    packed = []
    for detail in details:
        container = any_pb2.Any()
        container.Pack(detail)
        packed.append(container)
    return status_pb2.Status(
        code=code_pb2.Code.Value(error.code.name),
        message=_cut(error.message, MAX_MESSAGE_CHARS),
        details=packed,
    )


def to_status(error: DisaggError, *, request_id: str = "") -> WireStatus:
    """The status that ends a call with an error."""
    proto = to_proto(error, request_id=request_id)
    trailers: list[tuple[str, str | bytes]] = [(DETAILS_KEY, proto.SerializeToString())]
    if error.retry_after_s is not None:
        trailers.append((PUSHBACK_KEY, str(round(error.retry_after_s * 1000))))
    return WireStatus(error.code, proto.message, tuple(trailers))


def from_proto(proto: status_pb2.Status) -> DisaggError:
    """The error a status stands for; an unknown reason keeps the class of its code."""
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    bad = error_details_pb2.BadRequest()
    has_info = has_retry = False
    for detail in proto.details:
        has_info = detail.Unpack(info) or has_info
        has_retry = detail.Unpack(retry) or has_retry
        detail.Unpack(bad)
    code = _CODES.get(proto.code, grpc.StatusCode.INTERNAL)
    retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9 if has_retry else None
    if has_info and info.domain == DOMAIN and info.reason in Reason.__members__:
        reason = Reason[info.reason]
        cls = CLASS_OF_REASON[reason]
        return cls(
            proto.message,
            reason=reason,
            metadata=dict(info.metadata),
            retry_after_s=retry_after_s,
            violations=tuple(
                FieldViolation(field=entry.field, description=entry.description)
                for entry in bad.field_violations
            ),
        )
    return from_code(code, proto.message, retry_after_s=retry_after_s)


def from_code(
    code: grpc.StatusCode, text: str, *, retry_after_s: float | None = None
) -> DisaggError:
    """The error a bare code stands for: one that gRPC made itself or a foreign server sent."""
    cls = _BARE.get(code)
    if cls is None:
        return Bug(f"a peer ended the call with {code.name} and no reason: {text}")
    return cls(text or code.name, retry_after_s=retry_after_s)


def from_rpc_error(error: grpc.RpcError) -> DisaggError:
    """The error a failed call stands for; the call's error becomes its cause."""
    code = error.code()
    text = error.details() or ""
    made: DisaggError | None = None
    # Pairs for synchronous and asynchronous calls alike; the stubs know only the former's class.
    for key, value in cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ()):
        if key == DETAILS_KEY:
            proto = status_pb2.Status.FromString(value if isinstance(value, bytes) else b"")
            if proto.code == code.value[0] and proto.message == text:
                made = from_proto(proto)
    if made is None:
        made = from_code(code, text)
    made.__cause__ = error
    return made


# What gRPC itself says with a bare code. Any other code without our details is a peer that broke
# the contract.
_BARE: dict[grpc.StatusCode, type[DisaggError]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: TooLate,
    grpc.StatusCode.CANCELLED: CallerLeft,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _bounded(metadata: dict[str, str]) -> dict[str, str]:
    return {key: _cut(value, MAX_DESCRIPTION_CHARS) for key, value in list(metadata.items())[:8]}
