"""Writing, extending and index records; the rest is in the contract suite."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.backends.memory import MemoryBackend
from kvstore.errors import BlockMissing
from kvstore.keys import Component, index_key
from kvstore.payloads.payloads import Payloads
from kvstore.payloads.reading import ReadRequest, read
from kvstore.payloads.sealing import PayloadRef
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
                read(payloads, [ReadRequest(ref=REF)])
        return put_index(*arguments)

    raw._memory.put_index = interrupted  # type: ignore[method-assign]
    payloads.write([payloads.seal(REF, payload)], 60_000)
    assert not interruptions
    assert read(payloads, [ReadRequest(ref=REF)]) == [payload]


def test_a_broken_index_is_replaced_by_the_next_writer(payloads: Payloads, raw: RawMemory) -> None:
    payload = make_bytes("x", 300)
    payloads.write([payloads.seal(REF, payload)], 60_000)
    key = index_key(FINGERPRINT, NAME)
    raw.write(key, b"x" + raw.values()[key][1:])
    payloads.write([payloads.seal(REF, payload)], 60_000)
    assert read(payloads, [ReadRequest(ref=REF)]) == [payload]
