"""Digests of payloads: whole, while they arrive, and in segments."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvstore.digests import DIGEST_BYTES, RunningDigest, combine_digests, payload_digest
from kvstore.headers import HEADER_BYTES


def test_a_digest_is_canonical_xxh3_128() -> None:
    assert payload_digest(b"some payload") == xxhash.xxh3_128(b"some payload").digest()
    assert len(payload_digest(b"")) == DIGEST_BYTES


def test_the_digest_of_one_segment_is_that_of_the_payload() -> None:
    one, two = payload_digest(b"1"), payload_digest(b"2")
    assert combine_digests([one]) == one
    assert combine_digests([one, two]) != combine_digests([two, one])


@pytest.mark.parametrize("num_bytes", [0, 100, 600_000])
@pytest.mark.parametrize("steps", [(), (40,), (64, 65), (10, 300_000, 500_000), (700_000,)])
def test_a_running_digest_is_the_digest(num_bytes: int, steps: tuple[int, ...]) -> None:
    value = memoryview(bytes(HEADER_BYTES) + b"abc" * (num_bytes // 3))
    running = RunningDigest()
    for _ in range(2):
        running.begin(value)
        for step in steps:
            running.advance(min(step, len(value)))
        assert running.finish(value) == payload_digest(value[HEADER_BYTES:])


@given(
    sizes=st.lists(st.integers(0, 700_000), min_size=1, max_size=3),
    steps=st.lists(st.integers(0, 700_064), max_size=6).map(sorted),
)
def test_values_of_any_length_one_after_the_other(sizes: list[int], steps: list[int]) -> None:
    """Short and long ones in turn: nothing of the one before is left in the next."""
    running = RunningDigest()
    for number, size in enumerate(sizes):
        value = memoryview(bytes(HEADER_BYTES) + bytes([number]) * size)
        running.begin(value)
        for step in steps:
            running.advance(min(step, len(value)))
        assert running.finish(value) == payload_digest(value[HEADER_BYTES:])
