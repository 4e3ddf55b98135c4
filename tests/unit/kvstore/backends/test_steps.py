"""The steps leave everything as it is when they refuse; the rest is in the contract suite."""

from __future__ import annotations

import pytest

from kvstore.backends.base import HandoffKeys, LeaseGrant, LeaseOutcome, PutItem
from kvstore.backends.memory import MemoryBackend
from kvstore.keys import lease_key
from tests.fakes.stores import ManualClock

KEYS = HandoffKeys(body=b"dkv1:h:{a}", lease=lease_key("a"), tails=(b"t0", b"t1"))
GRANT = LeaseGrant(owner="o", request_id="r", attempt=1, num_bytes=1, lease_ms=1000, ttl_ms=10_000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(clock: ManualClock) -> MemoryBackend:
    return MemoryBackend(clock)


def put(backend: MemoryBackend, *keys: bytes, ttl_ms: int = 500) -> None:
    backend.put([PutItem(key, b"", b"x", ttl_ms) for key in keys])


def test_an_index_lengthens_no_segment_unless_all_are_there(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    put(backend, b"s0")
    assert not backend.put_index(b"index", [b"s0", b"s1"], b"", b"record", 10_000)
    assert backend.lookup([b"index"]) == [False]
    clock.advance(0.6)
    assert backend.lookup([b"s0"]) == [False]
    put(backend, b"s0", b"s1")
    assert backend.put_index(b"index", [b"s0", b"s1"], b"", b"record", 10_000)
    assert not backend.put_index(b"index", [b"s0"], b"another", b"new", 10_000)
    clock.advance(5)
    assert backend.lookup([b"s0", b"s1", b"index"]) == [True] * 3


def test_a_commit_names_the_first_missing_tail(backend: MemoryBackend) -> None:
    put(backend, b"t0")
    reply = backend.commit(KEYS, b"body", GRANT)
    assert (reply.outcome, reply.part_idx) == (LeaseOutcome.INCOMPLETE, 1)
    assert backend.lookup([KEYS.body]) == [False]
    put(backend, b"t1")
    assert backend.commit(KEYS, b"body", GRANT).outcome is LeaseOutcome.GRANTED
    assert backend.commit(KEYS, b"other", GRANT).outcome is LeaseOutcome.CONFLICT


def test_a_fence_rises_and_lives_on(backend: MemoryBackend, clock: ManualClock) -> None:
    assert backend.fence(b"a", 0, 0) == 0
    assert backend.fence(b"a", 2, 1000) == 2
    clock.advance(0.9)
    assert backend.fence(b"a", 1, 1000) == 2
    clock.advance(0.9)
    assert backend.fence(b"a", 0, 0) == 2
    clock.advance(0.2)
    assert backend.fence(b"a", 0, 0) == 0


def test_a_lease_ends_with_its_life(backend: MemoryBackend, clock: ManualClock) -> None:
    put(backend, b"t0", b"t1")
    reply = backend.commit(KEYS, b"body", GRANT)
    clock.advance(11)
    assert backend.acquire(KEYS, GRANT, reply.fencing_token).outcome is LeaseOutcome.GONE
    assert backend.audit() == []
    assert not backend.expire(KEYS)
