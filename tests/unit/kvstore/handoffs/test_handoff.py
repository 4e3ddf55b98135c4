"""Commit under interference: what is evicted, taken or stale at each of its steps."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kvstore import KvStore
from kvstore.backends.base import PutItem
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockCorrupt, BlockMissing, StaleAttempt, StoreFull
from kvstore.keys import body_key
from tests.fakes.stores import ManualClock, Prompt, RawMemory, make_store, small_config

PROMPT = Prompt("r", tuple(range(14)))


class Interfering(MemoryBackend):
    """Loses, or refuses, what a test names."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.lose_tails = False
        self.refuse_tails = False

    def put(self, items: Iterable[PutItem]) -> list[bytes | None]:
        items = list(items)
        tails = [item.key for item in items if b":t:" in item.key]
        if tails and self.refuse_tails:
            raise StoreFull("memory", "as the test wants")
        found = super().put(items)
        if tails and self.lose_tails:
            del self._values[tails[-1]]
        return found


def test_a_tail_that_is_evicted_before_the_commit_is_named() -> None:
    backend = Interfering()
    store = make_store(backend)
    backend.lose_tails = True
    with pytest.raises(BlockMissing) as caught:
        PROMPT.hand_over(store)
    assert caught.value.kind == "tail_state"
    assert not [key for key in RawMemory(backend).values() if b":h:" in key]
    backend.lose_tails = False
    assert PROMPT.hand_over(store).num_blocks == 3


def test_a_commit_that_is_refused_can_be_repeated() -> None:
    backend = Interfering()
    store = make_store(backend)
    backend.refuse_tails = True
    with pytest.raises(StoreFull):
        PROMPT.hand_over(store)
    assert store.audit() == []
    backend.refuse_tails = False
    PROMPT.hand_over(store)
    assert store.statistics().failures == {"store_full": 1}


def test_another_body_under_the_name_is_a_conflict() -> None:
    backend = MemoryBackend(ManualClock())
    store, raw = make_store(backend), RawMemory(backend)
    ticket = PROMPT.hand_over(store)
    key = body_key(ticket.handoff_id)
    raw.write(key, raw.values()[key] + b"x")
    with pytest.raises(BlockCorrupt) as caught:
        PROMPT.hand_over(store)
    assert (caught.value.kind, caught.value.reason) == ("body", "conflict")


def test_an_attempt_that_is_stale_writes_no_tail() -> None:
    backend = MemoryBackend(ManualClock())
    store = make_store(backend)
    store.begin_attempt("r", 3)
    with pytest.raises(StaleAttempt) as caught:
        PROMPT.hand_over(store)
    assert caught.value.newest == 3
    assert not [key for key in RawMemory(backend).values() if b":t:" in key]


def test_attempts_of_other_requests_do_not_matter() -> None:
    store = make_store(MemoryBackend(ManualClock()))
    store.begin_attempt("other", 9)
    assert PROMPT.hand_over(store).attempt == 1


def test_the_ticket_carries_what_decode_needs() -> None:
    store = make_store(MemoryBackend(ManualClock()))
    ticket = PROMPT.hand_over(store)
    assert ticket.request_id == "r"
    assert ticket.num_tokens == 14
    assert ticket.last_block_hash == PROMPT.hashes[-1]
    assert ticket.first_token == PROMPT.first_token
    assert len(ticket.body_digest) == 32
    assert len(ticket.tail_digest) == 16
    assert ticket.tail_key.endswith("{" + ticket.handoff_id + "}")


def test_a_client_of_another_layout_aborts_the_whole_hand_off() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock)
    writer = make_store(backend, clock)
    ticket = Prompt("r-1", tuple(range(10))).hand_over(writer)
    other = KvStore(backend, small_config(), fingerprint=bytes(8), clock=clock)
    assert other.abort(ticket.handoff_id)
    assert writer.audit() == [], "the tail goes with the body, whatever layout it has"
