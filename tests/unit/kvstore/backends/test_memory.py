"""Lives, limits and copies of the in-process backend, on a clock that is moved by hand."""

import threading

import pytest

from kvstore.backends.base import PutItem
from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockMissing, LeaseLost, StoreFull
from kvstore.handoffs.leases import LeaseState
from tests.fakes.stores import ManualClock, Prompt, make_store

PROMPT = Prompt("r", tuple(range(14)))


def item(key: bytes, payload: bytes, ttl_ms: int = 1000) -> PutItem:
    return PutItem(key=key, header=bytes(64), payload=payload, ttl_ms=ttl_ms)


def read(backend: MemoryBackend, key: bytes) -> bytes | None:
    values: list[bytes | None] = []
    backend.get([key], lambda _idx, view: values.append(view and bytes(view)))
    return values[0]


def test_values_end_with_their_life() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock)
    backend.put([item(b"k", b"v")])
    clock.advance(0.999)
    assert backend.lookup([b"k"]) == [True]
    clock.advance(0.001)
    assert backend.lookup([b"k"]) == [False]
    assert read(backend, b"k") is None
    assert backend.statistics().num_keys == 0


def test_a_life_is_lengthened_and_never_shortened() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock)
    backend.put([item(b"k", b"v")])
    backend.lookup([b"k"], extend_ms=5000)
    backend.lookup([b"k"], extend_ms=10)
    clock.advance(4.9)
    assert backend.lookup([b"k"]) == [True]


def test_nothing_aliases() -> None:
    backend = MemoryBackend(ManualClock())
    payload = bytearray(b"before")
    backend.put([item(b"k", payload)])  # type: ignore[arg-type]
    payload[:] = b"after!"
    first = read(backend, b"k")
    assert first is not None
    assert first.endswith(b"before")


def test_a_full_store_refuses_and_keeps_what_it_has() -> None:
    backend = MemoryBackend(ManualClock(), max_bytes=200)
    backend.put([item(b"a", bytes(100))])
    with pytest.raises(StoreFull, match="200 bytes"):
        backend.put([item(b"b", bytes(100))])
    assert backend.lookup([b"a", b"b"]) == [True, False]


def test_index_records_are_swapped_only_if_nobody_changed_them() -> None:
    backend = MemoryBackend(ManualClock())
    backend.put([item(b"s", b"segment")])
    assert not backend.put_index(b"m", [b"s", b"gone"], b"", b"one", 1000)
    assert backend.put_index(b"m", [b"s"], b"", b"one", 1000)
    assert not backend.put_index(b"m", [b"s"], b"", b"two", 1000)
    assert backend.put_index(b"m", [b"s"], b"one", b"two", 1000)
    assert backend.put_index(b"m", [b"s"], b"one", b"two", 1000)  # twice is harmless
    assert read(backend, b"m") == b"two"


def test_quarantine_compares_first() -> None:
    backend = MemoryBackend(ManualClock())
    backend.put([item(b"k", b"v")])
    assert not backend.quarantine(b"k", b"other")
    assert backend.quarantine(b"k", bytes(64))
    assert not backend.quarantine(b"k", bytes(64))


def test_attempts_never_go_back() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock)
    assert backend.fence(b"a", 0, 0) == 0
    assert backend.fence(b"a", 3, 1000) == 3
    assert backend.fence(b"a", 2, 1000) == 3
    clock.advance(1)
    assert backend.fence(b"a", 0, 0) == 0


def test_a_hand_off_that_nobody_claims_lapses_and_ends() -> None:
    clock = ManualClock()
    store = make_store(MemoryBackend(clock), clock)
    ticket = PROMPT.hand_over(store)
    clock.advance(60.5)
    assert [record.state for record in store.audit()] == [LeaseState.LAPSED]
    clock.advance(600)
    assert store.audit() == []
    with pytest.raises(BlockMissing):
        # The attempt is known for longer than any ticket of it lives.
        store.open_ticket(ticket, PROMPT.token_ids)


def test_tails_without_a_commit_end_soon() -> None:
    clock = ManualClock()
    backend = MemoryBackend(clock)
    backend.put([item(b"dkv1:00:t:{%s}:3:0:0" % (b"0" * 32), b"tail", 30_000)])
    store = make_store(backend, clock)
    (record,) = store.audit()
    assert (record.state, record.age_s, record.remaining_s) == (LeaseState.RESERVED, None, 30.0)
    assert store.janitor().num_expired == 0
    clock.advance(30)
    assert store.audit() == []


def test_a_reader_that_sleeps_loses_its_lease_and_its_data() -> None:
    clock = ManualClock()
    store = make_store(MemoryBackend(clock), clock)
    reader = store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids)
    clock.advance(9.9)
    reader.fetch()
    clock.advance(10.1)
    with pytest.raises(LeaseLost):
        reader.fetch()
    assert reader.release()


def test_released_blocks_are_cache_and_end_with_it() -> None:
    clock = ManualClock()
    store = make_store(MemoryBackend(clock), clock)
    with store.open_ticket(PROMPT.hand_over(store), PROMPT.token_ids) as reader:
        reader.fetch()
    clock.advance(3599)
    assert store.lookup(PROMPT.hashes).num_blocks == 3
    store.get_blocks(PROMPT.hashes)  # use keeps them for another hour
    clock.advance(3599)
    assert store.lookup(PROMPT.hashes).num_blocks == 3
    clock.advance(2)
    assert store.lookup(PROMPT.hashes).num_blocks == 0


def test_unreleased_blocks_end_after_the_hand_off_class() -> None:
    clock = ManualClock()
    store = make_store(MemoryBackend(clock), clock)
    PROMPT.hand_over(store)
    clock.advance(599)
    assert store.lookup(PROMPT.hashes).num_blocks == 3
    clock.advance(2)
    assert store.lookup(PROMPT.hashes).num_blocks == 0


@pytest.mark.medium
def test_threads_share_a_store() -> None:
    store = make_store(MemoryBackend(ManualClock()))
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(20):
                prompt = Prompt(f"{number}-{round_}", (*range(8), number, round_))
                with store.open_ticket(prompt.hand_over(store), prompt.token_ids) as reader:
                    assert [*map(bytes, reader.fetch().blocks)] == prompt.payloads
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert store.audit() == []
