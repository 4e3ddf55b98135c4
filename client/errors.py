"""What the client raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grpc
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


class ClientError(Exception):
    """The front door refused or ended a call, or would have (see `InvalidArgument`).

    Attributes:
        code: Name of the gRPC code, e.g. RESOURCE_EXHAUSTED.
        reason: Stable reason of the server, e.g. QUEUE_FULL; empty if the transport failed.
        retry_after_s: When to try again, if the server said so.
        fields: Field names at fault, with what is wrong with them.
        last_seq: Number of the last token received; a resumed call goes on behind it.
        metadata: Facts of the server about the reason, by name.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        reason: str = "",
        retry_after_s: float | None = None,
        fields: Mapping[str, str] | None = None,
        last_seq: int = 0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.fields = dict(fields or {})
        self.last_seq = last_seq
        self.metadata = dict(metadata or {})

    @property
    def is_resumable(self) -> bool:
        """Whether the same call with `last_seq` may go on where this one broke."""
        return self.code == "UNAVAILABLE" or self.reason == "DUPLICATE_REQUEST"


class InvalidArgument(ClientError, ValueError):
    """An argument that cannot be sent; found here, before any call.

    Args:
        field: The argument, as in `sampling.seed` or `prompt[3]`.
        description: The value found, and what would be accepted.
    """

    def __init__(self, field: str, description: str) -> None:
        super().__init__(
            f"{field}: {description}",
            code="INVALID_ARGUMENT",
            reason="BAD_SAMPLING" if field.startswith("sampling.") else "BAD_REQUEST",
            fields={field: description},
        )


class StreamBroken(ClientError):
    """The stream ended without its last message, or its numbers have a gap."""

    def __init__(self, message: str, *, last_seq: int) -> None:
        super().__init__(message, code="UNAVAILABLE", last_seq=last_seq)


def from_call(
    code: grpc.StatusCode,
    details: str | None,
    trailers: Iterable[tuple[str, str | bytes]],
    *,
    last_seq: int,
) -> ClientError:
    """The error of a failed call; the server's details are read if they are there."""
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    bad = error_details_pb2.BadRequest()
    has_retry = False
    for key, value in trailers:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            for detail in status_pb2.Status.FromString(value).details:
                has_retry = detail.Unpack(retry) or has_retry
                detail.Unpack(info)
                detail.Unpack(bad)
    return ClientError(
        details or code.name,
        code=code.name,
        reason=info.reason,
        retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9 if has_retry else None,
        fields={item.field: item.description for item in bad.field_violations},
        last_seq=last_seq,
        metadata=info.metadata,
    )
