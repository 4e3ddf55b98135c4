"""A reader checks every bit of a header, and the payload behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.digests import payload_digest
from kvstore.headers import HEADER_BYTES, MAX_SEGMENTS, Header, HeaderError
from kvstore.keys import Component
from kvstore.verification import Expected, verify_segment

FINGERPRINT = bytes.fromhex("0011223344556677")
NAME = bytes(range(32))
PAYLOAD = b"some payload"


def make_header(**changes: object) -> Header:
    values: dict[str, object] = {
        "fingerprint": FINGERPRINT,
        "name": NAME[:8],
        "component": Component.KV,
        "segment": 0,
        "num_segments": 1,
        "num_bytes": len(PAYLOAD),
        "digest": payload_digest(PAYLOAD),
        "flags": 1,
    }
    return Header(**{**values, **changes})  # type: ignore[arg-type]


EXPECTED = Expected(
    fingerprint=FINGERPRINT, name=NAME, component=Component.KV, segment=0, attempt=0
)


@given(position=st.integers(0, HEADER_BYTES * 8 - 1))
def test_no_bit_of_a_header_is_free(position: int) -> None:
    value = bytearray(make_header().pack() + PAYLOAD)
    value[position // 8] ^= 1 << position % 8
    with pytest.raises(HeaderError):
        verify_segment(bytes(value), EXPECTED)


@pytest.mark.parametrize(
    ("header", "expected", "reason"),
    [
        ({"fingerprint": bytes(8)}, {}, "fingerprint"),
        ({"name": bytes(8)}, {}, "name"),
        ({"component": Component.STATE}, {}, "component"),
        ({"rank": 1}, {}, "rank"),
        ({"segment": 1, "num_segments": 2}, {}, "segment"),
        ({"attempt": 1}, {}, "attempt"),
        ({"num_segments": 2, "flags": 0}, {"num_segments": 3}, "count"),
        ({"num_segments": 0}, {}, "count"),
        ({"num_segments": MAX_SEGMENTS + 1, "flags": 0}, {}, "count"),
        ({"flags": 0}, {}, "flags"),
        ({"num_bytes": 5}, {}, "length"),
        ({}, {"num_bytes": 5}, "length"),
        ({}, {"digest": bytes(16)}, "digest"),
        ({"digest": bytes(16)}, {}, "digest"),
    ],
)
def test_each_check_has_its_reason(
    header: dict[str, object], expected: dict[str, object], reason: str
) -> None:
    with pytest.raises(HeaderError) as caught:
        verify_segment(
            make_header(**header).pack() + PAYLOAD,
            EXPECTED._replace(**expected),  # type: ignore[arg-type]
        )
    assert caught.value.reason == reason


def test_a_sound_segment_gives_its_payload_without_a_copy() -> None:
    value = bytearray(make_header().pack() + PAYLOAD)
    found = verify_segment(value, EXPECTED)
    assert bytes(found.payload) == PAYLOAD
    assert (found.header, found.num_segments) == (bytes(value[:HEADER_BYTES]), 1)
    assert found.digest == payload_digest(PAYLOAD)
    assert found.payload.obj is value


def test_a_value_shorter_or_longer_than_the_ticket_says_is_refused() -> None:
    """Also when its header repeats what the ticket says."""
    expected = EXPECTED._replace(
        num_bytes=len(PAYLOAD), digest=payload_digest(PAYLOAD), num_segments=1
    )
    value = make_header().pack() + PAYLOAD
    assert verify_segment(value, expected).payload == PAYLOAD
    for changed in (value[:-1], value + b"x", value[:64], value[:64] + bytes(len(PAYLOAD))):
        with pytest.raises(HeaderError):
            verify_segment(changed, expected)
    with pytest.raises(HeaderError) as caught:
        verify_segment(value, expected._replace(segment=1))
    assert caught.value.reason == "segment"


def test_the_first_of_several_segments_says_how_many_there_are() -> None:
    value = make_header(num_segments=3, flags=0).pack() + PAYLOAD
    assert verify_segment(value, EXPECTED).num_segments == 3


def test_a_digest_of_zeros_or_a_length_of_zero_is_checked_too() -> None:
    empty = make_header(num_bytes=0, digest=payload_digest(b"")).pack()
    expected = EXPECTED._replace(num_bytes=0, digest=payload_digest(b""))
    assert verify_segment(empty, expected).payload == b""
    with pytest.raises(HeaderError):
        verify_segment(empty + b"x", expected)
    longer = make_header(num_bytes=0, digest=payload_digest(b"x")).pack() + b"x"
    with pytest.raises(HeaderError):
        verify_segment(longer, EXPECTED._replace(num_bytes=0))
    with pytest.raises(HeaderError):
        verify_segment(
            make_header(digest=bytes(16)).pack() + PAYLOAD,
            EXPECTED._replace(digest=bytes(16)),
        )
