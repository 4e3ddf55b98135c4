"""Every error of the library has a class and a reason on the wire."""

import inspect

import grpc
import pytest

from kvstore import errors
from kvstore.rim import register_errors, translate
from runtime.errors import ErrorMap, Reason

CODE = grpc.StatusCode
CASES = [
    (
        errors.BlockCorrupt("kv", 3, "digest", "bytes differ"),
        CODE.DATA_LOSS,
        Reason.CHECKSUM_DIFFERS,
    ),
    (errors.BlockMissing("tail_kv", 0), CODE.NOT_FOUND, Reason.BLOCK_EVICTED),
    (errors.LeaseLost("h", "expired"), CODE.ABORTED, Reason.LEASE_LOST),
    (errors.StaleAttempt("r", 1, 2), CODE.ABORTED, Reason.STALE_ATTEMPT),
    (
        errors.LayoutDiffers("fingerprint", "aa", "bb"),
        CODE.FAILED_PRECONDITION,
        Reason.KV_LAYOUT_DIFFERS,
    ),
    (errors.TicketInvalid("num_tokens", 3, 4), CODE.INVALID_ARGUMENT, Reason.BAD_REQUEST),
    (errors.StoreFull("host:1", "maxmemory"), CODE.RESOURCE_EXHAUSTED, Reason.POOL_FULL),
    (errors.StoreDown("host:1", "refused"), CODE.UNAVAILABLE, Reason.STORE_DOWN),
    (errors.StoreRefused("host:1", "WRONGTYPE"), CODE.UNAVAILABLE, Reason.STORE_DOWN),
    (errors.StoreIsCluster("host:1"), CODE.UNAVAILABLE, Reason.STORE_DOWN),
]


@pytest.mark.parametrize(("error", "code", "reason"), CASES, ids=lambda case: type(case).__name__)
def test_code_reason_text_and_cause(
    error: errors.KvStoreError, code: grpc.StatusCode, reason: Reason
) -> None:
    made = translate(error)
    assert (made.code, made.reason, made.message) == (code, reason, str(error))
    assert made.metadata["cause"] == error.cause


def test_facts_for_programs() -> None:
    corrupt = translate(errors.BlockCorrupt("kv", 3, "digest", "bytes differ"))
    assert corrupt.metadata | {"kind": "kv", "index": "3", "check": "digest"} == corrupt.metadata
    stale = translate(errors.StaleAttempt("r", 1, 2))
    assert stale.metadata["newest_attempt"] == "2"
    invalid = translate(errors.TicketInvalid("num_tokens", 3, 4))
    assert [violation.field for violation in invalid.violations] == ["ticket.num_tokens"]


def test_no_error_of_the_library_is_forgotten() -> None:
    known = {type(case[0]) for case in CASES}
    known |= {errors.KvStoreError, errors.EmbeddedUnavailable}  # at start only, never in a call
    found = {
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.KvStoreError)
    }
    assert found == known


def test_a_registered_map_translates_and_keeps_the_cause() -> None:
    table = ErrorMap()
    register_errors(table)
    error = errors.StoreDown("host:1", "refused")
    made = table.translate(error)
    assert made is not None
    assert made.reason is Reason.STORE_DOWN
    assert made.__cause__ is error
    assert table.translate(ValueError("x")) is None
