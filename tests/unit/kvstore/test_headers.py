"""The form of a header, byte by byte, and that any bytes are a header or an error."""

import struct
from contextlib import suppress
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvstore.headers import BAD_TAG, HEADER_BYTES, Header, HeaderError, flags_of, unpack_header
from kvstore.keys import Component

FINGERPRINT = bytes.fromhex("0011223344556677")
NAME = bytes(range(32))
PAYLOAD = b"some payload"
DIGEST = xxhash.xxh3_128(PAYLOAD).digest()
HEADER = Header(
    fingerprint=FINGERPRINT,
    name=NAME[:8],
    component=3,
    segment=1,
    num_segments=2,
    num_bytes=len(PAYLOAD),
    digest=DIGEST,
    flags=2,
    attempt=5,
)


def test_a_header_byte_by_byte() -> None:
    packed = HEADER.pack()
    assert len(packed) == HEADER_BYTES
    assert packed[:4] == b"DKV1"
    assert struct.unpack_from("<HH", packed, 4) == (1, 2)
    assert packed[8:16] == FINGERPRINT
    assert packed[16:24] == NAME[:8]
    assert struct.unpack_from("<HHHH", packed, 24) == (3, 0, 1, 2)
    assert struct.unpack_from("<Q", packed, 32) == (len(PAYLOAD),)
    assert packed[40:56] == DIGEST
    assert struct.unpack_from("<I", packed, 56) == (5,)
    assert packed[60:] == bytes(4)
    assert unpack_header(packed) == HEADER


def test_only_the_first_bytes_of_a_name_are_stored() -> None:
    assert replace(HEADER, name=NAME).pack() == HEADER.pack()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_error_or_a_header(value: bytes) -> None:
    with suppress(HeaderError):
        assert unpack_header(value).pack() == value[:HEADER_BYTES]


@given(
    fields=st.fixed_dictionaries(
        {
            "fingerprint": st.binary(min_size=8, max_size=8),
            "name": st.binary(min_size=8, max_size=8),
            "digest": st.binary(min_size=16, max_size=16),
            "num_bytes": st.integers(0, 2**64 - 1),
            "attempt": st.integers(0, 2**32 - 1),
            **dict.fromkeys(
                ("component", "segment", "num_segments", "flags", "rank"), st.integers(0, 2**16 - 1)
            ),
        }
    )
)
def test_every_field_comes_back(fields: dict[str, object]) -> None:
    header = Header(**fields)  # type: ignore[arg-type]
    assert unpack_header(header.pack()) == header


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (HEADER.pack()[:-1], "length"),
        (BAD_TAG, "tag"),
        (b"DKV2" + HEADER.pack()[4:], "magic"),
        (HEADER.pack()[:4] + b"\x02\x00" + HEADER.pack()[6:], "version"),
        (HEADER.pack()[:-1] + b"\x01", "reserved"),
    ],
)
def test_what_is_no_header_says_why(value: bytes, reason: str) -> None:
    with pytest.raises(HeaderError) as caught:
        unpack_header(value)
    assert caught.value.reason == reason


def test_flags_follow_from_component_and_count() -> None:
    assert flags_of(Component.KV, 1) == 1
    assert flags_of(Component.STATE, 2) == 0
    assert flags_of(Component.TAIL_KV, 1) == flags_of(Component.TAIL_STATE, 9) == 2
