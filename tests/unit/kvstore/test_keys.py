"""Names and headers byte by byte, and that a reader checks every bit of a header."""

import struct
from contextlib import suppress

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvstore.keys import (
    HEADER_BYTES,
    MAX_SEGMENTS,
    Component,
    Expected,
    Header,
    HeaderError,
    RunningDigest,
    attempt_key,
    body_key,
    combine_digests,
    data_key,
    first_keys,
    flags_of,
    flat_view,
    handoff_id_of_key,
    index_key,
    is_handoff_id,
    lease_key,
    payload_digest,
    tail_key,
    tail_prefix,
    unpack_header,
    verify_segment,
)

FINGERPRINT = bytes.fromhex("0011223344556677")
NAME = bytes(range(32))
HANDOFF = "00112233445566778899aabbccddeeff"
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


def test_the_grammar_of_keys() -> None:
    name = NAME.hex().encode()
    assert data_key(FINGERPRINT, NAME, Component.STATE, 3) == (
        b"dkv1:0011223344556677:b:{" + name + b"}:2:0:3"
    )
    assert index_key(FINGERPRINT, NAME) == b"dkv1:0011223344556677:m:{" + name + b"}"
    assert tail_key(FINGERPRINT, HANDOFF, Component.TAIL_KV, 1) == (
        b"dkv1:0011223344556677:t:{00112233445566778899aabbccddeeff}:3:0:1"
    )
    assert tail_key(FINGERPRINT, HANDOFF, Component.TAIL_KV, 1).startswith(
        tail_prefix(FINGERPRINT, HANDOFF)
    )
    assert body_key(HANDOFF) == b"dkv1:h:{00112233445566778899aabbccddeeff}"
    assert lease_key(HANDOFF) == b"dkv1:l:{00112233445566778899aabbccddeeff}"


def test_keys_of_a_chain_are_those_of_its_blocks() -> None:
    names = [NAME, bytes(32)]
    assert first_keys(FINGERPRINT, Component.STATE, names) == [
        data_key(FINGERPRINT, name, Component.STATE, 0) for name in names
    ]


def test_request_ids_enter_keys_as_digests() -> None:
    assert attempt_key("user: text {}") == attempt_key("user: text {}")
    assert attempt_key("a") != attempt_key("b")
    assert b"user" not in attempt_key("user: text {}")


@pytest.mark.parametrize("key", [body_key(HANDOFF), lease_key(HANDOFF)])
def test_the_part_between_the_braces(key: bytes) -> None:
    assert handoff_id_of_key(key) == HANDOFF
    assert handoff_id_of_key(b"no braces") == ""


@pytest.mark.parametrize(
    ("text", "is_id"),
    [(HANDOFF, True), (HANDOFF.upper(), False), (HANDOFF[1:], False), ("../" * 11, False)],
)
def test_what_is_a_handoff_id(text: str, is_id: bool) -> None:
    assert is_handoff_id(text) is is_id


def test_a_header_byte_by_byte() -> None:
    header = make_header(flags=2, component=3, rank=0, segment=1, num_segments=2, attempt=5)
    packed = header.pack()
    assert len(packed) == HEADER_BYTES
    assert packed[:4] == b"DKV1"
    assert struct.unpack_from("<HH", packed, 4) == (1, 2)
    assert packed[8:16] == FINGERPRINT
    assert packed[16:24] == NAME[:8]
    assert struct.unpack_from("<HHHH", packed, 24) == (3, 0, 1, 2)
    assert struct.unpack_from("<Q", packed, 32) == (len(PAYLOAD),)
    assert packed[40:56] == xxhash.xxh3_128(PAYLOAD).digest()
    assert struct.unpack_from("<I", packed, 56) == (5,)
    assert packed[60:] == bytes(4)
    assert unpack_header(packed) == header


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


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_error_or_a_header(value: bytes) -> None:
    with suppress(HeaderError):
        assert unpack_header(value).pack() == value[:HEADER_BYTES]


def test_flags_follow_from_component_and_count() -> None:
    assert flags_of(Component.KV, 1) == 1
    assert flags_of(Component.STATE, 2) == 0
    assert flags_of(Component.TAIL_KV, 1) == flags_of(Component.TAIL_STATE, 9) == 2


def test_the_digest_of_one_segment_is_that_of_the_payload() -> None:
    one, two = payload_digest(b"1"), payload_digest(b"2")
    assert combine_digests([one]) == one
    assert combine_digests([one, two]) != combine_digests([two, one])


@pytest.mark.parametrize(
    "buffer",
    [
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"abcd").cast("I"),
        memoryview(b"abcd").cast("B", (2, 2)),
    ],
)
def test_flat_views(buffer: bytes) -> None:
    assert bytes(flat_view(buffer)) == b"abcd"


def test_empty_buffers_have_flat_views() -> None:
    assert len(flat_view(b"")) == 0
    assert len(flat_view(memoryview(bytearray()))) == 0


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
