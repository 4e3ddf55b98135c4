"""One tree of errors and one table of reasons.

The class of an error decides its gRPC code, its HTTP status and whether a repetition can help; the
reason, a stable upper-case word that is also a value of `ErrorReason` in `common.proto`, says what
happened. Libraries raise small exceptions of their own; the rim of a process translates them into
this tree (`ErrorMap`), and `runtime.status` carries the tree over the wire.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import grpc

DOMAIN = "disagg"


class ExitCode(enum.IntEnum):
    """How processes and commands end."""

    OK = 0
    FAILED = 1
    CONFIGURATION = 2
    DEPENDENCY = 3
    INTERNAL = 4


class Reason(enum.StrEnum):
    """What happened; the names of `ErrorReason` without their prefix."""

    BAD_REQUEST = "BAD_REQUEST"
    BAD_SAMPLING = "BAD_SAMPLING"
    UNSUPPORTED_PARAMETER = "UNSUPPORTED_PARAMETER"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    CONSTRAINT_REJECTED = "CONSTRAINT_REJECTED"
    UNKNOWN_MODEL = "UNKNOWN_MODEL"
    NOT_AUTHENTICATED = "NOT_AUTHENTICATED"
    NOT_ALLOWED = "NOT_ALLOWED"
    RATE_LIMITED = "RATE_LIMITED"
    QUEUE_FULL = "QUEUE_FULL"
    POOL_FULL = "POOL_FULL"
    NO_PREFILL = "NO_PREFILL"
    NO_DECODE = "NO_DECODE"
    DRAINING = "DRAINING"
    PEER_GONE = "PEER_GONE"
    STORE_DOWN = "STORE_DOWN"
    FIRST_TOKEN_LATE = "FIRST_TOKEN_LATE"
    DEADLINE = "DEADLINE"
    CALLER_LEFT = "CALLER_LEFT"
    BLOCK_EVICTED = "BLOCK_EVICTED"
    LEASE_LOST = "LEASE_LOST"
    STALE_ATTEMPT = "STALE_ATTEMPT"
    KV_LAYOUT_DIFFERS = "KV_LAYOUT_DIFFERS"
    MODEL_REVISION_DIFFERS = "MODEL_REVISION_DIFFERS"
    CHECKSUM_DIFFERS = "CHECKSUM_DIFFERS"
    STREAM_INTERRUPTED = "STREAM_INTERRUPTED"
    INVARIANT_BROKEN = "INVARIANT_BROKEN"
    DUPLICATE_REQUEST = "DUPLICATE_REQUEST"
    EVENTS_LOST = "EVENTS_LOST"
    EVENTS_GONE = "EVENTS_GONE"


class Retry(enum.Enum):
    """Whether, and how, doing it again can help."""

    NEVER = "never"
    AFTER_HINT = "after the hint"
    ELSEWHERE = "elsewhere or later"
    RECOMPUTE = "recompute instead"
    FROM_READING = "from the reading step"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldViolation:
    """One thing wrong with one field of a request."""

    field: str
    description: str


class DisaggError(Exception):
    """Root of the tree; raise one of its subclasses.

    Args:
        message: A sentence for the caller that names the field, the value and the way out.
        reason: One of the reasons of the class; the first of them if not given.
        metadata: Facts for programs; short strings, no secrets.
        retry_after_s: Hint for classes that may be repeated.
        violations: Fields at fault, for bad requests.
    """

    code: ClassVar[grpc.StatusCode]
    http_status: ClassVar[int]
    retry: ClassVar[Retry] = Retry.NEVER
    reasons: ClassVar[tuple[Reason, ...]]

    def __init__(
        self,
        message: str,
        *,
        reason: Reason | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
        violations: tuple[FieldViolation, ...] = (),
    ) -> None:
        super().__init__(message)
        chosen = self.reasons[0] if reason is None else reason
        if chosen not in self.reasons:
            raise ValueError(
                f"{type(self).__name__} has the reasons {', '.join(self.reasons)}, not {chosen}"
            )
        self.message = message
        self.reason = chosen
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s
        self.violations = violations


class InvalidRequest(DisaggError):
    """The request itself is wrong; sending it again changes nothing."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 400
    reasons = (
        Reason.BAD_REQUEST,
        Reason.BAD_SAMPLING,
        Reason.UNSUPPORTED_PARAMETER,
        Reason.PROMPT_TOO_LONG,
    )


class Denied(DisaggError):
    """The caller did not say who it is."""

    code = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401
    reasons = (Reason.NOT_AUTHENTICATED,)


class Forbidden(Denied):
    """The caller is known and not allowed."""

    code = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403
    reasons = (Reason.NOT_ALLOWED,)


class NotFound(DisaggError):
    """What was named is not here."""

    code = grpc.StatusCode.NOT_FOUND
    http_status = 404
    retry = Retry.RECOMPUTE
    reasons = (Reason.BLOCK_EVICTED, Reason.UNKNOWN_MODEL)


class AlreadyRunning(DisaggError):
    """The identifier is taken by something that still runs."""

    code = grpc.StatusCode.ALREADY_EXISTS
    http_status = 409
    reasons = (Reason.DUPLICATE_REQUEST,)


class Mismatch(DisaggError):
    """Two parts do not fit together; another pair may."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 500
    reasons = (Reason.KV_LAYOUT_DIFFERS, Reason.MODEL_REVISION_DIFFERS, Reason.CONSTRAINT_REJECTED)


class Conflict(DisaggError):
    """Somebody else was faster."""

    code = grpc.StatusCode.ABORTED
    http_status = 409
    retry = Retry.FROM_READING
    reasons = (Reason.LEASE_LOST, Reason.STALE_ATTEMPT)


class Overloaded(DisaggError):
    """A bounded resource is full."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 429
    retry = Retry.AFTER_HINT
    reasons = (Reason.QUEUE_FULL, Reason.POOL_FULL, Reason.RATE_LIMITED)


class Unavailable(DisaggError):
    """Nobody can serve it here and now."""

    code = grpc.StatusCode.UNAVAILABLE
    http_status = 503
    retry = Retry.ELSEWHERE
    reasons = (
        Reason.PEER_GONE,
        Reason.DRAINING,
        Reason.NO_PREFILL,
        Reason.NO_DECODE,
        Reason.STORE_DOWN,
        Reason.STREAM_INTERRUPTED,
    )


class TooLate(DisaggError):
    """A budget of time ran out."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504
    reasons = (Reason.DEADLINE, Reason.FIRST_TOKEN_LATE)


class CallerLeft(DisaggError):
    """The caller cancelled; nobody reads this but a log."""

    code = grpc.StatusCode.CANCELLED
    http_status = 499
    reasons = (Reason.CALLER_LEFT,)


class Corrupt(DisaggError):
    """Bytes are not what was written."""

    code = grpc.StatusCode.DATA_LOSS
    http_status = 500
    retry = Retry.RECOMPUTE
    reasons = (Reason.CHECKSUM_DIFFERS, Reason.EVENTS_LOST)


class OutOfRange(DisaggError):
    """What was asked for is not kept any more, or does not exist yet."""

    code = grpc.StatusCode.OUT_OF_RANGE
    http_status = 400
    reasons = (Reason.EVENTS_GONE,)


class Bug(DisaggError):
    """An invariant of ours does not hold."""

    code = grpc.StatusCode.INTERNAL
    http_status = 500
    reasons = (Reason.INVARIANT_BROKEN,)


CLASSES: tuple[type[DisaggError], ...] = (
    InvalidRequest,
    Denied,
    Forbidden,
    NotFound,
    AlreadyRunning,
    Mismatch,
    Conflict,
    Overloaded,
    Unavailable,
    TooLate,
    CallerLeft,
    Corrupt,
    OutOfRange,
    Bug,
)
CLASS_OF_REASON: Mapping[Reason, type[DisaggError]] = {
    reason: cls for cls in CLASSES for reason in cls.reasons
}


def is_retryable(error: DisaggError) -> bool:
    """Whether a repetition, here or elsewhere, can help at all."""
    if error.reason is Reason.UNKNOWN_MODEL:
        return False
    return error.retry is not Retry.NEVER


def http_status(error: DisaggError) -> int:
    """The HTTP status a user sees for an error."""
    # The user's constraint is at fault here, not the pair of parts as for the rest of the class.
    return 400 if error.reason is Reason.CONSTRAINT_REJECTED else error.http_status


E = TypeVar("E", bound=BaseException)


class ErrorMap:
    """Translates exceptions of libraries into the tree, most specific class first.

    Filled once at start; used by the exception mapper of `runtime.serve` on every failing call.
    """

    def __init__(self) -> None:
        # The factories have different parameter types; `register` guarantees the match.
        self._factories: dict[type[BaseException], Callable[[BaseException], DisaggError]] = {}

    def register(self, exception: type[E], factory: Callable[[E], DisaggError]) -> None:
        """Translate `exception` and its subclasses with `factory`.

        Raises:
            ValueError: the class is registered already.
        """
        if exception in self._factories:
            raise ValueError(f"{exception.__name__} is registered already")
        self._factories[exception] = factory  # type: ignore[assignment]

    def register_causes(self, exception: type[E], *, default: Reason) -> None:
        """Translate `exception` and its subclasses by their `cause`, a label in lower case.

        A cause that is a reason in lower case means that reason, any other one `default`. For
        libraries that must not import this module and name their causes by our reasons.
        """

        def factory(error: E) -> DisaggError:
            cause = str(getattr(error, "cause", ""))
            reason = Reason.__members__.get(cause.upper(), default)
            return CLASS_OF_REASON[reason](str(error), reason=reason, metadata={"cause": cause})

        self.register(exception, factory)

    def translate(self, error: BaseException) -> DisaggError | None:
        """The error of the tree that says the same; None if nothing is known about it.

        An exception group is translated if all its leaves are, to the first leaf's error.
        """
        if isinstance(error, DisaggError):
            return error
        if isinstance(error, BaseExceptionGroup):
            translated = [self.translate(leaf) for leaf in error.exceptions]
            if any(leaf is None for leaf in translated):
                return None
            return translated[0]
        for cls in type(error).__mro__:
            factory = self._factories.get(cls)
            if factory is not None:
                made = factory(error)
                made.__cause__ = error
                return made
        return None
