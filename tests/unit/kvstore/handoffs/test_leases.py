"""The states of a hand-off as a table, and the keys that belong to it."""

import pytest

from kvstore.backends.base import LeaseEntry
from kvstore.handoffs.leases import LeaseState, classify, handoff_keys, keys_of

HANDOFF = "00112233445566778899aabbccddeeff"


@pytest.mark.parametrize(
    ("has_lease", "has_body", "held", "remaining_ms", "state"),
    [
        (False, False, "", 60_000, LeaseState.RESERVED),
        (False, False, "", 60_001, LeaseState.ORPHAN),
        (True, True, "committed", 5000, LeaseState.COMMITTED),
        (True, True, "held", 5000, LeaseState.HELD),
        (True, True, "committed", 0, LeaseState.LAPSED),
        (True, True, "held", -5, LeaseState.LAPSED),
        (True, False, "held", 5000, LeaseState.ORPHAN),
        (False, True, "", 0, LeaseState.ORPHAN),
    ],
)
def test_states(
    has_lease: bool, has_body: bool, held: str, remaining_ms: int, state: LeaseState
) -> None:
    record = classify(
        LeaseEntry(
            handoff_id=HANDOFF,
            has_lease=has_lease,
            has_body=has_body,
            tails=(),
            state=held,
            age_ms=1500 if has_lease else None,
            remaining_ms=remaining_ms,
        )
    )
    assert record.state is state
    assert record.is_orphan == (state in {LeaseState.LAPSED, LeaseState.ORPHAN})
    assert record.age_s == (1.5 if has_lease else None)
    assert record.remaining_s == max(0, remaining_ms) / 1000
    assert record.reason


def test_keys_of_a_hand_off() -> None:
    keys = handoff_keys(bytes(8), HANDOFF, [1, 2])
    assert keys.body == b"dkv1:h:{%s}" % HANDOFF.encode()
    assert keys.lease == b"dkv1:l:{%s}" % HANDOFF.encode()
    assert [key.rpartition(b"}")[2] for key in keys.tails] == [b":3:0:0", b":4:0:0", b":4:0:1"]


def test_the_janitor_deletes_exactly_what_the_audit_found() -> None:
    entry = LeaseEntry(handoff_id=HANDOFF, has_lease=False, has_body=True, tails=(b"a", b"b"))
    assert keys_of(entry).tails == (b"a", b"b")
    assert keys_of(entry).body == b"dkv1:h:{%s}" % HANDOFF.encode()
