"""Every error has a cause that is fit for a label, and says what to do."""

import inspect

import pytest

from kvstore import errors

EXAMPLES = [
    (errors.StoreDown("host:1", "refused"), "store_down", "host:1"),
    (errors.StoreFull("host:1", "OOM"), "store_full", "maxmemory"),
    (errors.StoreRefused("host:1", "WRONGTYPE"), "store_refused", "WRONGTYPE"),
    (errors.StoreIsCluster("host:1"), "store_is_cluster", "redis+cluster://"),
    (errors.BlockMissing("state", 4), "missing_state", "4"),
    (errors.BlockCorrupt("kv", 2, "digest", "differs"), "corrupt_digest", "2"),
    (errors.LeaseLost("abc", "taken"), "lease_taken", "discarded"),
    (errors.StaleAttempt("r", 1, 3), "stale_attempt", "start attempt 4"),
    (errors.StaleAttempt("r", 2, 0), "stale_attempt", "start attempt 3"),
    (errors.LayoutDiffers("block_tokens", "4", "8"), "layout_differs", "same model"),
    (errors.TicketInvalid("num_tokens", 1, 2), "ticket_num_tokens", "num_tokens"),
    (errors.EmbeddedUnavailable("no binary"), "embedded_unavailable", "no binary"),
]


@pytest.mark.parametrize(("error", "cause", "words"), EXAMPLES)
def test_cause_and_message(error: errors.KvStoreError, cause: str, words: str) -> None:
    assert error.cause == cause
    assert words in str(error)


def test_every_class_has_an_example() -> None:
    classes = {
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.KvStoreError) and value is not errors.KvStoreError
    }
    assert classes == {type(error) for error, _, _ in EXAMPLES}
