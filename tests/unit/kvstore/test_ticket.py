"""The proof of a hand-off: what encodes, what is refused, and in which words."""

import dataclasses

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg import block_hash
from kvstore.errors import BlockCorrupt, LayoutDiffers, TicketInvalid
from kvstore.keys import Component, tail_prefix
from kvstore.records import SegmentDigest
from kvstore.ticket import (
    HandoffDraft,
    Ticket,
    TicketBody,
    body_digest,
    check_body,
    check_ticket,
    check_tokens,
    decode_body,
    derive_handoff_id,
    encode_body,
    tail_digest,
    tail_hash,
)

FINGERPRINT = bytes(range(8))
HANDOFF = "00112233445566778899aabbccddeeff"
TOKENS = tuple(range(10))
HASHES = block_hash.chain(TOKENS, 4)
BODY = TicketBody(
    handoff_id=HANDOFF,
    request_id="request",
    attempt=2,
    fingerprint=FINGERPRINT,
    block_tokens=4,
    num_tokens=10,
    last_block_hash=HASHES[-1],
    tail_hash=tail_hash(HASHES[-1], TOKENS[8:], ""),
    block_digests=(bytes(16), b"1" * 16),
    tail_kv=(SegmentDigest(num_bytes=3, digest=b"2" * 16),),
    tail_state=(
        SegmentDigest(num_bytes=4, digest=b"3" * 16),
        SegmentDigest(num_bytes=1, digest=b"4" * 16),
    ),
    first_token=77,
    producer="prefill-0",
    producer_rank=1,
)
STORED = encode_body(BODY)
TICKET = Ticket(
    handoff_id=HANDOFF,
    request_id="request",
    attempt=2,
    fingerprint=FINGERPRINT,
    num_tokens=10,
    num_blocks=2,
    last_block_hash=HASHES[-1],
    tail_key=tail_prefix(FINGERPRINT, HANDOFF).decode(),
    tail_digest=tail_digest(BODY),
    body_digest=body_digest(STORED),
    first_token=77,
    fencing_token=1,
    remaining_s=60.0,
)


def test_a_body_comes_back() -> None:
    assert decode_body(STORED) == BODY
    assert decode_body(memoryview(STORED)) == BODY


def test_the_tail_segments_of_a_component() -> None:
    assert BODY.tail_segments(Component.TAIL_KV) == BODY.tail_kv
    assert BODY.tail_segments(Component.TAIL_STATE) == BODY.tail_state


FIELDS = msgpack.unpackb(STORED)


@pytest.mark.parametrize(
    ("idx", "value"),
    [
        (0, 2),
        (1, 5),
        (1, "x" * 300),
        (3, 0),
        (3, True),
        (4, bytes(7)),
        (5, 0),
        (6, -1),
        (8, bytes(31)),
        (9, bytes(17)),
        (9, "text"),
        (10, []),
        (10, [[1, b"short"]]),
        (11, 7),
        (12, 2**32),
        (13, None),
        (14, -1),
    ],
)
def test_a_body_with_a_wrong_field_is_refused(idx: int, value: object) -> None:
    fields = [*FIELDS]
    fields[idx] = value
    with pytest.raises(BlockCorrupt) as caught:
        decode_body(msgpack.packb(fields))
    assert (caught.value.kind, caught.value.reason) == ("body", "form")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_body_or_corrupt(payload: bytes) -> None:
    with pytest.raises(BlockCorrupt):
        decode_body(payload)


@given(position=st.integers(0, len(STORED) * 8 - 1))
def test_a_flipped_bit_never_gives_the_same_digest(position: int) -> None:
    damaged = bytearray(STORED)
    damaged[position // 8] ^= 1 << position % 8
    with pytest.raises(BlockCorrupt):
        check_body(TICKET, BODY, bytes(damaged), block_tokens=4)


def test_a_sound_ticket_passes() -> None:
    check_ticket(TICKET, fingerprint=FINGERPRINT)
    check_body(TICKET, BODY, STORED, block_tokens=4)
    assert check_tokens(BODY, TOKENS, "") == tuple(HASHES)


def test_tickets_of_other_layouts_are_refused() -> None:
    with pytest.raises(LayoutDiffers, match="fingerprint"):
        check_ticket(TICKET, fingerprint=bytes(8))
    with pytest.raises(LayoutDiffers, match="block_tokens"):
        check_body(TICKET, BODY, STORED, block_tokens=8)


@pytest.mark.parametrize(
    "field",
    [
        "handoff_id",
        "request_id",
        "attempt",
        "fingerprint",
        "num_tokens",
        "num_blocks",
        "last_block_hash",
        "tail_digest",
        "first_token",
    ],
)
def test_ticket_and_body_agree_in_every_field(field: str) -> None:
    value = getattr(TICKET, field)
    other = value + 1 if isinstance(value, int) else value[:-1]
    with pytest.raises(TicketInvalid) as caught:
        check_body(dataclasses.replace(TICKET, **{field: other}), BODY, STORED, block_tokens=4)
    assert caught.value.field == field


def test_a_body_with_a_wrong_number_of_blocks_is_refused() -> None:
    body = dataclasses.replace(BODY, num_tokens=13)
    stored = encode_body(body)
    ticket = dataclasses.replace(TICKET, num_tokens=13, body_digest=body_digest(stored))
    with pytest.raises(TicketInvalid) as caught:
        check_body(ticket, body, stored, block_tokens=4)
    assert caught.value.field == "num_blocks"


@pytest.mark.parametrize("position", [0, 3, 7, 8, 9])
def test_other_tokens_break_the_chain(position: int) -> None:
    tokens = list(TOKENS)
    tokens[position] = 500
    with pytest.raises(BlockCorrupt) as caught:
        check_tokens(BODY, tokens, "")
    assert caught.value.reason == "chain"


def test_tokens_must_be_as_many_and_valid() -> None:
    with pytest.raises(TicketInvalid, match="num_tokens"):
        check_tokens(BODY, TOKENS[:-1], "")
    for bad in (-1, 2**32):
        with pytest.raises(TicketInvalid, match="token_ids"):
            check_tokens(BODY, (*TOKENS[:-1], bad), "")


def test_the_salt_is_part_of_a_short_prompt_too() -> None:
    assert tail_hash(b"", [1, 2], "a") != tail_hash(b"", [1, 2], "b")
    assert tail_hash(b"", [1, 2], "a") != tail_hash(b"", [1, 2, 3], "a")


DRAFT = HandoffDraft(
    request_id="request",
    attempt=2,
    num_tokens=10,
    block_hashes=HASHES,
    block_digests=[bytes(16), b"1" * 16],
    tail_tokens=TOKENS[8:],
    tail_kv=b"",
    tail_state=b"",
    first_token=77,
)


def test_the_id_is_a_function_of_the_content() -> None:
    first = derive_handoff_id(DRAFT, FINGERPRINT, b"tail")
    assert first == derive_handoff_id(DRAFT, FINGERPRINT, b"tail")
    assert len(first) == 32
    others = {
        derive_handoff_id(DRAFT, bytes(8), b"tail"),
        derive_handoff_id(DRAFT, FINGERPRINT, b"lait"),
        *(
            derive_handoff_id(dataclasses.replace(DRAFT, **change), FINGERPRINT, b"tail")  # type: ignore[arg-type]
            for change in (
                {"request_id": "other"},
                {"attempt": 3},
                {"num_tokens": 11},
                {"first_token": 78},
                {"block_hashes": HASHES[:1]},
                {"block_digests": [bytes(16), bytes(16)]},
            )
        ),
    }
    assert len(others | {first}) == 9
