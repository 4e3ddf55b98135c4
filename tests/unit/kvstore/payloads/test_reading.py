"""Reading: which failure is raised, and where bytes land."""

from __future__ import annotations

import pytest

from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockCorrupt
from kvstore.keys import Component
from kvstore.payloads.payloads import Payloads
from kvstore.payloads.reading import ReadRequest, read
from kvstore.payloads.sealing import PayloadRef, block_refs
from kvstore.statistics import Counters
from tests.fakes.stores import FINGERPRINT, ManualClock, RawMemory, make_bytes, small_config

NAME = bytes(range(32))
REF = PayloadRef(component=Component.KV, name=NAME, position=5)


@pytest.fixture
def raw() -> RawMemory:
    return RawMemory(MemoryBackend(ManualClock()))


@pytest.fixture
def payloads(raw: RawMemory) -> Payloads:
    return Payloads(raw.backend, small_config(), FINGERPRINT, Counters())


def test_the_first_failure_by_position_is_raised(payloads: Payloads, raw: RawMemory) -> None:
    refs = block_refs([bytes([idx]) * 32 for idx in range(4)])
    payloads.write([payloads.seal(ref, b"payload") for ref in refs[:3]], 60_000)
    for idx in (1, 2):
        key = refs[idx].key(FINGERPRINT, 0)
        raw.write(key, raw.values()[key][:-1] + b"x")
    with pytest.raises(BlockCorrupt) as caught:
        read(payloads, [ReadRequest(ref=ref) for ref in refs])
    assert caught.value.index == 1
    # Every corrupt value of the batch was taken away, not only the first.
    assert payloads.exist(Component.KV, [ref.name for ref in refs]) == [True, False, False, False]


def test_a_sound_value_that_is_not_the_tickets_is_corrupt(payloads: Payloads) -> None:
    payloads.write([payloads.seal(REF, b"payload")], 60_000)
    with pytest.raises(BlockCorrupt) as caught:
        read(payloads, [ReadRequest(ref=REF, digest=bytes(16))])
    assert (caught.value.index, caught.value.reason) == (5, "digest")
    assert payloads.exist(Component.KV, [NAME]) == [False]


TAIL = PayloadRef(component=Component.TAIL_STATE, name=bytes(16), attempt=1)


@pytest.mark.parametrize("num_bytes", [1, 128, 129, 140, 256, 300, 1000])
def test_a_tail_in_segments_arrives_in_one_buffer(payloads: Payloads, num_bytes: int) -> None:
    """Also when its last segment is shorter than the header that lands in front of it."""
    sealed = payloads.seal(TAIL, make_bytes("x", num_bytes))
    payloads.write([sealed], 60_000)
    sizes: list[int] = []

    def allocate(size: int) -> bytearray:
        sizes.append(size)
        return bytearray(b"." * size)

    (payload,) = read(payloads, [ReadRequest(TAIL, None, sealed.segment_digests())], allocate)
    assert bytes(payload) == make_bytes("x", num_bytes)
    assert sizes == [num_bytes + 64]


def test_a_tail_segment_of_another_length_is_corrupt(payloads: Payloads, raw: RawMemory) -> None:
    sealed = payloads.seal(TAIL, make_bytes("x", 300))
    payloads.write([sealed], 60_000)
    raw.write(TAIL.key(FINGERPRINT, 1), raw.values()[TAIL.key(FINGERPRINT, 1)] + b"x")
    with pytest.raises(BlockCorrupt) as caught:
        read(payloads, [ReadRequest(TAIL, None, sealed.segment_digests())])
    assert caught.value.reason == "length"
