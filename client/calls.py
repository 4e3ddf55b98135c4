"""What the calls of all clients have in common: their bounds, their errors, when to call again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

import grpc

from client.errors import ClientError, from_call
from client.wire import Answer

MAX_RESUMES = 3
_PAUSES_S = (0.05, 0.25, 1.0)
SHORT_CALL_S = 30.0
EXPLAIN_S = 60.0


class HasProgress(Protocol):
    """An answer that knows how far it came."""

    last_seq: int


def pause_s(resumes: int) -> float:
    """Seconds to wait before a broken stream is resumed once more."""
    return _PAUSES_S[min(resumes, len(_PAUSES_S) - 1)]


@contextmanager
def errors_of(answer: HasProgress | None = None) -> Iterator[None]:
    """Turns a failed call into a ClientError."""
    try:
        yield
    except grpc.RpcError as error:
        last_seq = answer.last_seq if answer is not None else 0
        # Pairs in both kinds of calls; the stubs know only the class of the blocking one.
        trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
        raise from_call(error.code(), error.details(), trailers, last_seq=last_seq) from error


def may_resume(error: ClientError, answer: Answer, resumes: int, max_resumes: int) -> bool:
    """Whether to send the call again: only what broke on the way, and only so often.

    A duplicate id right after a break is our own call that the server has not seen end yet; as the
    first answer it is a mistake of the caller.
    """
    if answer.is_complete or resumes >= max_resumes:
        return False
    if error.reason == "DUPLICATE_REQUEST":
        return resumes > 0
    return error.is_resumable
