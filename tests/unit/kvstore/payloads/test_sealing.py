"""Where payloads are cut, and what their names are."""

from __future__ import annotations

import pytest

from kvstore.digests import combine_digests, payload_digest
from kvstore.headers import unpack_header
from kvstore.keys import Component
from kvstore.payloads.sealing import PayloadRef, block_refs, rename, seal
from tests.fakes.stores import FINGERPRINT, make_bytes

REF = PayloadRef(component=Component.KV, name=bytes(range(32)), position=5)


@pytest.mark.parametrize(
    ("num_bytes", "sizes"),
    [(0, [0]), (1, [1]), (128, [128]), (129, [128, 1]), (384, [128] * 3)],
)
def test_where_payloads_are_cut(num_bytes: int, sizes: list[int]) -> None:
    payload = make_bytes("x", num_bytes)
    sealed = seal(REF, payload, fingerprint=FINGERPRINT, segment_bytes=128)
    assert [len(segment) for segment in sealed.segments] == sizes
    assert sealed.num_bytes == num_bytes
    assert sealed.digest == combine_digests(
        [payload_digest(payload[start : start + 128]) for start in range(0, num_bytes, 128)]
        or [payload_digest(b"")]
    )
    assert [part.num_bytes for part in sealed.segment_digests()] == sizes
    headers = [unpack_header(header) for header in sealed.headers]
    assert [header.segment for header in headers] == list(range(len(sizes)))
    assert {header.num_segments for header in headers} == {len(sizes)}


def test_a_payload_with_too_many_segments_is_refused() -> None:
    with pytest.raises(ValueError, match="raise segment_bytes"):
        seal(REF, bytes(5000), fingerprint=FINGERPRINT, segment_bytes=1)


def test_a_renamed_payload_is_another_value_with_the_same_digest() -> None:
    sealed = seal(REF, b"payload", fingerprint=FINGERPRINT, segment_bytes=128)
    ref = PayloadRef(component=Component.STATE, name=bytes(32))
    other = rename(sealed, ref, fingerprint=FINGERPRINT)
    assert other.digest == sealed.digest
    assert other.headers != sealed.headers
    assert other == seal(ref, b"payload", fingerprint=FINGERPRINT, segment_bytes=128)


def test_tails_and_blocks_have_keys_of_their_own() -> None:
    tail = PayloadRef(Component.TAIL_KV, bytes(16), attempt=2)
    assert b":t:{" in tail.key(FINGERPRINT, 1)
    first, second = block_refs([bytes(32), b"x" * 32])
    assert (first.position, second.position) == (0, 1)
    assert b":b:{" in first.key(FINGERPRINT, 0)
