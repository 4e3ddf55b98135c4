"""A reader renews while it works, checks at the end, and releases by every door."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvstore.backends.base import HandoffKeys, LeaseOutcome, LeaseReply, OnBytes, OnValue, Place
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockCorrupt, LeaseLost, StoreDown
from kvstore.handoffs.reader import require_granted
from kvstore.keys import data_key
from tests.fakes.stores import FINGERPRINT, ManualClock, Prompt, RawMemory, make_store

LONG = Prompt("r", tuple(range(4 * 200 + 3)))  # four reads of up to 64 blocks


class Slow(MemoryBackend):
    """Takes a while for every read, and counts renewals."""

    def __init__(self, clock: ManualClock, read_s: float) -> None:
        super().__init__(clock)
        self.clock, self.read_s, self.num_renewed = clock, read_s, 0
        self.is_down = False

    def get(
        self,
        keys: Sequence[bytes],
        on_value: OnValue,
        place: Place | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        self.clock.advance(self.read_s)
        super().get(keys, on_value, place, on_bytes)

    def renew(self, keys: HandoffKeys, fencing_token: int, lease_ms: int) -> LeaseReply:
        self.num_renewed += 1
        return super().renew(keys, fencing_token, lease_ms)

    def release(self, keys: HandoffKeys, fencing_token: int | None) -> LeaseReply:
        if self.is_down:
            raise StoreDown("memory", "as the test wants")
        return super().release(keys, fencing_token)


def make_slow(read_s: float) -> Slow:
    return Slow(ManualClock(), read_s)


@pytest.mark.parametrize(("read_s", "num_renewed"), [(0.0, 1), (2.0, 3), (4.0, 5)])
def test_the_lease_is_renewed_at_a_third_and_checked_at_the_end(
    read_s: float, num_renewed: int
) -> None:
    backend = make_slow(read_s)
    store = make_store(backend, backend.clock)
    with store.open_ticket(LONG.hand_over(store), LONG.token_ids) as reader:
        assert reader.fetch().num_tokens == len(LONG.token_ids)
    assert backend.num_renewed == num_renewed


def test_a_read_that_outlasts_the_lease_is_discarded() -> None:
    backend = make_slow(11.0)
    store = make_store(backend, backend.clock)
    with (
        store.open_ticket(LONG.hand_over(store), LONG.token_ids) as reader,
        pytest.raises(LeaseLost, match="lapsed"),
    ):
        reader.fetch()
    assert store.audit() == []


def test_leaving_by_an_error_releases() -> None:
    backend = make_slow(0.0)
    store = make_store(backend)
    key = data_key(FINGERPRINT, LONG.hashes[100], 1, 0)  # type: ignore[arg-type]
    ticket = LONG.hand_over(store)
    RawMemory(backend).write(key, bytes(164))
    with (
        pytest.raises(BlockCorrupt) as caught,
        store.open_ticket(ticket, LONG.token_ids) as reader,
    ):
        reader.fetch()
    assert caught.value.index == 100
    assert store.audit() == []
    assert store.statistics().failures == {"corrupt_magic": 1}


def test_a_release_that_fails_is_counted_and_the_lease_ends_by_itself() -> None:
    backend = make_slow(0.0)
    store = make_store(backend, backend.clock)
    with store.open_ticket(LONG.hand_over(store), LONG.token_ids) as reader:
        reader.fetch()
        backend.is_down = True
    assert store.statistics().failures == {"store_down": 1}
    backend.clock.advance(11)
    assert store.janitor().num_expired == 1
    assert store.audit() == []


def test_the_body_can_be_looked_at() -> None:
    store = make_store(make_slow(0.0))
    with store.open_ticket(LONG.hand_over(store), LONG.token_ids) as reader:
        assert reader.body.producer == "writer"
        assert len(reader.body.block_digests) == 200


@pytest.mark.parametrize("outcome", [o for o in LeaseOutcome if o is not LeaseOutcome.GRANTED])
def test_everything_but_granted_is_a_lost_lease(outcome: LeaseOutcome) -> None:
    with pytest.raises(LeaseLost) as caught:
        require_granted(LeaseReply(outcome=outcome), "id")
    assert caught.value.cause == f"lease_{outcome.value}"
