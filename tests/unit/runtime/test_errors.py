"""The tree of errors and its table of reasons."""

import grpc
import pytest

from disagg.v1 import common_pb2
from runtime import errors
from runtime.errors import CLASS_OF_REASON, CLASSES, DisaggError, ErrorMap, ExitCode, Reason, Retry


def test_reasons_are_those_of_the_wire_contract() -> None:
    names = common_pb2.ErrorReason.DESCRIPTOR.values_by_name
    wire = {name.removeprefix("ERROR_REASON_") for name in names}
    assert wire - {"UNSPECIFIED"} == {str(reason) for reason in Reason}


def test_every_reason_belongs_to_one_class() -> None:
    listed = [reason for cls in CLASSES for reason in cls.reasons]
    assert sorted(listed) == sorted(Reason)
    assert set(CLASS_OF_REASON) == set(Reason)


@pytest.mark.parametrize(
    ("reason", "code", "http", "retryable"),
    [
        (Reason.BAD_SAMPLING, "INVALID_ARGUMENT", 400, False),
        (Reason.PROMPT_TOO_LONG, "INVALID_ARGUMENT", 400, False),
        (Reason.CONSTRAINT_REJECTED, "FAILED_PRECONDITION", 400, False),
        (Reason.UNKNOWN_MODEL, "NOT_FOUND", 404, False),
        (Reason.NOT_AUTHENTICATED, "UNAUTHENTICATED", 401, False),
        (Reason.NOT_ALLOWED, "PERMISSION_DENIED", 403, False),
        (Reason.QUEUE_FULL, "RESOURCE_EXHAUSTED", 429, True),
        (Reason.POOL_FULL, "RESOURCE_EXHAUSTED", 429, True),
        (Reason.DRAINING, "UNAVAILABLE", 503, True),
        (Reason.STREAM_INTERRUPTED, "UNAVAILABLE", 503, True),
        (Reason.FIRST_TOKEN_LATE, "DEADLINE_EXCEEDED", 504, False),
        (Reason.CALLER_LEFT, "CANCELLED", 499, False),
        (Reason.BLOCK_EVICTED, "NOT_FOUND", 404, True),
        (Reason.LEASE_LOST, "ABORTED", 409, True),
        (Reason.KV_LAYOUT_DIFFERS, "FAILED_PRECONDITION", 500, False),
        (Reason.CHECKSUM_DIFFERS, "DATA_LOSS", 500, True),
        (Reason.EVENTS_LOST, "DATA_LOSS", 500, True),
        (Reason.EVENTS_GONE, "OUT_OF_RANGE", 400, False),
        (Reason.INVARIANT_BROKEN, "INTERNAL", 500, False),
    ],
)
def test_the_table(reason: Reason, code: str, http: int, retryable: bool) -> None:
    error = CLASS_OF_REASON[reason]("text", reason=reason)
    assert error.code is grpc.StatusCode[code]
    assert errors.http_status(error) == http
    assert errors.is_retryable(error) is retryable


def test_the_first_reason_is_the_default() -> None:
    assert errors.InvalidRequest("x").reason is Reason.BAD_REQUEST
    assert errors.Unavailable("x").reason is Reason.PEER_GONE


def test_a_reason_of_another_class_is_refused() -> None:
    with pytest.raises(
        ValueError, match="Corrupt has the reasons CHECKSUM_DIFFERS, EVENTS_LOST, not"
    ):
        errors.Corrupt("x", reason=Reason.DRAINING)


def test_exit_codes_are_those_of_the_commands() -> None:
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 4]


class StoreError(Exception):
    pass


class StoreDown(StoreError):
    pass


@pytest.fixture
def error_map() -> ErrorMap:
    table = ErrorMap()
    table.register(StoreError, lambda error: errors.Bug(f"store: {error}"))
    table.register(
        StoreDown, lambda error: errors.Unavailable(str(error), reason=Reason.STORE_DOWN)
    )
    return table


def test_the_most_specific_class_decides(error_map: ErrorMap) -> None:
    cause = StoreDown("no route")
    translated = error_map.translate(cause)
    assert isinstance(translated, errors.Unavailable)
    assert translated.reason is Reason.STORE_DOWN
    assert translated.__cause__ is cause


def test_a_base_class_catches_the_rest(error_map: ErrorMap) -> None:
    class Other(StoreError):
        pass

    translated = error_map.translate(Other("x"))
    assert isinstance(translated, errors.Bug)
    assert translated.message == "store: x"


def test_unknown_exceptions_stay_unknown(error_map: ErrorMap) -> None:
    assert error_map.translate(ValueError("x")) is None


def test_our_own_errors_pass(error_map: ErrorMap) -> None:
    error = errors.Conflict("x")
    assert error_map.translate(error) is error


def test_a_group_is_known_if_all_its_leaves_are(error_map: ErrorMap) -> None:
    known = ExceptionGroup("g", [StoreDown("a"), ExceptionGroup("h", [StoreError("b")])])
    translated = error_map.translate(known)
    assert isinstance(translated, DisaggError)
    assert translated.reason is Reason.STORE_DOWN
    assert error_map.translate(ExceptionGroup("g", [StoreDown("a"), ValueError("b")])) is None


def test_a_class_is_registered_once(error_map: ErrorMap) -> None:
    with pytest.raises(ValueError, match="StoreDown is registered already"):
        error_map.register(StoreDown, lambda error: errors.Bug(str(error)))


def test_classes_that_never_help_say_so() -> None:
    assert {cls.__name__ for cls in CLASSES if cls.retry is Retry.NEVER} == {
        *("InvalidRequest", "Denied", "Forbidden", "AlreadyRunning", "Mismatch", "TooLate"),
        *("CallerLeft", "OutOfRange", "Bug"),
    }


def test_causes_that_are_reasons_name_them_and_the_rest_is_the_default() -> None:
    class LibraryError(Exception):
        cause = "library"

    class PoolIsFull(LibraryError):
        cause = "pool_full"

    table = ErrorMap()
    table.register_causes(LibraryError, default=Reason.BAD_REQUEST)
    full = table.translate(PoolIsFull("9 pages wanted"))
    assert full is not None
    assert (full.reason, full.message) == (Reason.POOL_FULL, "9 pages wanted")
    assert full.metadata == {"cause": "pool_full"}
    other = table.translate(LibraryError("x"))
    assert other is not None
    assert other.reason is Reason.BAD_REQUEST
