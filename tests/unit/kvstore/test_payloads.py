"""Splitting, sealing and extending; the rest of the payload layer is in the contract suite."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockCorrupt, BlockMissing
from kvstore.keys import Component, combine_digests, index_key, payload_digest
from kvstore.payloads import PayloadRef, Payloads, ReadRequest, block_refs
from kvstore.statistics import Counters
from tests.fakes.stores import FINGERPRINT, ManualClock, RawMemory, make_bytes, small_config

NAME = bytes(range(32))
REF = PayloadRef(component=Component.KV, name=NAME, index=5)


@pytest.fixture
def raw() -> RawMemory:
    return RawMemory(MemoryBackend(ManualClock()))


@pytest.fixture
def payloads(raw: RawMemory) -> Payloads:
    return Payloads(raw.backend, small_config(), FINGERPRINT, Counters())


@pytest.mark.parametrize(
    ("num_bytes", "sizes"),
    [(0, [0]), (1, [1]), (128, [128]), (129, [128, 1]), (384, [128] * 3)],
)
def test_where_payloads_are_cut(payloads: Payloads, num_bytes: int, sizes: list[int]) -> None:
    payload = make_bytes("x", num_bytes)
    sealed = payloads.seal(REF, payload)
    assert [len(segment) for segment in sealed.segments] == sizes
    assert sealed.num_bytes == num_bytes
    assert sealed.digest == combine_digests(
        [payload_digest(payload[start : start + 128]) for start in range(0, num_bytes, 128)]
        or [payload_digest(b"")]
    )
    assert [part.num_bytes for part in sealed.segment_digests()] == sizes


def test_a_payload_with_too_many_segments_is_refused(raw: RawMemory) -> None:
    payloads = Payloads(raw.backend, small_config(segment_bytes=1), FINGERPRINT, Counters())
    with pytest.raises(ValueError, match="raise segment_bytes"):
        payloads.seal(REF, bytes(5000))


def test_a_renamed_payload_is_another_value_with_the_same_digest(payloads: Payloads) -> None:
    sealed = payloads.seal(REF, b"payload")
    other = payloads.rename(sealed, PayloadRef(component=Component.STATE, name=bytes(32)))
    assert other.digest == sealed.digest
    assert other.headers != sealed.headers


def test_extending_covers_segments_and_index(payloads: Payloads, raw: RawMemory) -> None:
    payloads.write([payloads.seal(REF, make_bytes("x", 300))], 60_000)
    assert payloads.extend([REF], 100_000) == [True]
    lives = {value.expires_ms for value in raw._memory._values.values()}
    assert lives == {1_000_000 + 100_000}
    raw.delete(index_key(FINGERPRINT, NAME))
    assert payloads.extend([REF], 100_000) == [False]
    assert payloads.extend([], 100_000) == []


def test_segments_without_an_index_die_soon(payloads: Payloads, raw: RawMemory) -> None:
    sealed = payloads.seal(REF, make_bytes("x", 300))
    raw._memory.put_index = lambda *_arguments: False  # type: ignore[method-assign]
    with pytest.raises(BlockMissing, match="before its index"):
        payloads.write([sealed], 600_000)
    lives = {value.expires_ms - 1_000_000 for value in raw._memory._values.values()}
    assert lives == {30_000}


def test_a_reader_between_segments_and_index_does_not_fail_the_writer(
    payloads: Payloads, raw: RawMemory
) -> None:
    payload = make_bytes("x", 300)
    put_index, interruptions = raw._memory.put_index, [1, 1]

    def interrupted(*arguments: Any) -> bool:
        if interruptions:
            interruptions.pop()
            with pytest.raises(BlockMissing):
                payloads.read([ReadRequest(ref=REF)])
        return put_index(*arguments)

    raw._memory.put_index = interrupted  # type: ignore[method-assign]
    payloads.write([payloads.seal(REF, payload)], 60_000)
    assert not interruptions
    assert payloads.read([ReadRequest(ref=REF)]) == [payload]


def test_a_broken_index_is_replaced_by_the_next_writer(payloads: Payloads, raw: RawMemory) -> None:
    payload = make_bytes("x", 300)
    payloads.write([payloads.seal(REF, payload)], 60_000)
    key = index_key(FINGERPRINT, NAME)
    raw.write(key, b"x" + raw.values()[key][1:])
    payloads.write([payloads.seal(REF, payload)], 60_000)
    assert payloads.read([ReadRequest(ref=REF)]) == [payload]


def test_the_first_failure_by_position_is_raised(payloads: Payloads, raw: RawMemory) -> None:
    refs = block_refs([bytes([idx]) * 32 for idx in range(4)])
    payloads.write([payloads.seal(ref, b"payload") for ref in refs[:3]], 60_000)
    for idx in (1, 2):
        key = refs[idx].key(FINGERPRINT, 0)
        raw.write(key, raw.values()[key][:-1] + b"x")
    with pytest.raises(BlockCorrupt) as caught:
        payloads.read([ReadRequest(ref=ref) for ref in refs])
    assert caught.value.index == 1
    # Every corrupt value of the batch was taken away, not only the first.
    assert payloads.exist(Component.KV, [ref.name for ref in refs]) == [True, False, False, False]


def test_a_sound_value_that_is_not_the_tickets_is_corrupt(payloads: Payloads) -> None:
    payloads.write([payloads.seal(REF, b"payload")], 60_000)
    with pytest.raises(BlockCorrupt) as caught:
        payloads.read([ReadRequest(ref=REF, digest=bytes(16))])
    assert (caught.value.index, caught.value.reason) == (5, "digest")
    assert payloads.exist(Component.KV, [NAME]) == [False]
