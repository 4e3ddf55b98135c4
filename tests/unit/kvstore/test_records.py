"""Records survive a round trip, and anything else is refused with bounded work."""

from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import BlockCorrupt
from kvstore.records import (
    SegmentDigest,
    decode_index,
    decode_segment,
    encode_index,
    open_attempt,
    open_record,
    seal_attempt,
    seal_record,
    unpack_array,
)

FINGERPRINT, NAME = bytes(range(8)), bytes(range(32))
PARTS = (SegmentDigest(num_bytes=5, digest=bytes(16)), SegmentDigest(num_bytes=0, digest=b"x" * 16))


def test_a_record_comes_back() -> None:
    stored = seal_record(b"payload", fingerprint=FINGERPRINT, name=NAME, attempt=3)
    payload = open_record(stored, fingerprint=FINGERPRINT, name=NAME, kind="body", attempt=3)
    assert bytes(payload) == b"payload"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fingerprint": bytes(8)}, "fingerprint"),
        ({"name": bytes(32)}, "name"),
        ({"attempt": 4}, "attempt"),
    ],
)
def test_a_record_under_another_name_is_refused(change: dict[str, object], reason: str) -> None:
    stored = seal_record(b"payload", fingerprint=FINGERPRINT, name=NAME, attempt=3)
    wanted: dict[str, object] = {"fingerprint": FINGERPRINT, "name": NAME, "attempt": 3, **change}
    with pytest.raises(BlockCorrupt) as caught:
        open_record(stored, kind="body", **wanted)  # type: ignore[arg-type]
    assert (caught.value.kind, caught.value.reason) == ("body", reason)


def test_an_index_comes_back() -> None:
    index = {1: PARTS, 2: PARTS[:1]}
    assert decode_index(encode_index(index, "producer", 4)) == index


@pytest.mark.parametrize(
    "fields",
    [
        [2, [], "p", 1],
        [1, {}, "p", 1],
        [1, [[1, 0, []]], "p", 1],
        [1, [[1, 1, [[5, bytes(16)]]]], "p", 1],
        [1, [[1, 0, [[5, bytes(15)]]]], "p", 1],
        [1, [[1, 0, [[-1, bytes(16)]]]], "p", 1],
        [1, [[1, 0, [[5 << 20, bytes(16)]]]], "p", 1],
        [1, ["x"], "p", 1],
    ],
)
def test_other_arrays_are_no_index(fields: list[object]) -> None:
    with pytest.raises(BlockCorrupt) as caught:
        decode_index(msgpack.packb(fields))
    assert caught.value.reason == "form"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb({"a": 1}),
        msgpack.packb([1, 2, 3]),
        b"\x94\x01\x02\x03",  # shorter than it says
        b"\xdd\xff\xff\xff\xff",  # four billion fields
        b"\xc6\xff\xff\xff\xff",  # four billion bytes
        b"\x91" * 5000,  # nested
        msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb([1, 2, 3, 4]) + b"x",
    ],
)
def test_bytes_that_are_no_array_of_four(payload: bytes) -> None:
    with pytest.raises(BlockCorrupt) as caught:
        unpack_array(payload, 4, "index")
    assert (caught.value.kind, caught.value.reason) == ("index", "form")


@given(st.binary(max_size=300))
def test_any_bytes_are_an_index_or_corrupt(payload: bytes) -> None:
    with suppress(BlockCorrupt):
        assert isinstance(decode_index(payload), dict)


@pytest.mark.parametrize("item", [None, [], [1], [True, 2], ["1", bytes(16)], [1, "x" * 16]])
def test_what_is_no_segment(item: object) -> None:
    with pytest.raises(BlockCorrupt):
        decode_segment("body", item)


def test_the_record_of_an_attempt_binds_key_and_number() -> None:
    stored = seal_attempt(b"key", 12)
    assert stored.startswith(b"12:")
    assert open_attempt(b"key", stored) == 12
    assert open_attempt(b"other", stored) is None
    assert open_attempt(b"key", seal_attempt(b"key", 2**32)) == 2**32
    for bad in (b"", b"12", b":", stored[:-1], stored + b"0", stored.upper(), b"0" + stored):
        assert open_attempt(b"key", bad) is None, bad
    assert open_attempt(b"key", b"9" * 10_000 + b":") is None
    assert open_attempt(b"key", b"\xb2:" + stored[3:]) is None
