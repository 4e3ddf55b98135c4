"""Parsers of what comes from a store, on damaged and on random bytes: no crash, no hang."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from kvstore.backends.resp import ProtocolError, ReplyError, ReplyReader
from kvstore.errors import BlockCorrupt
from kvstore.keys import Component, Expected, Header, HeaderError, payload_digest, verify_segment
from kvstore.records import SegmentDigest, decode_index, encode_index, open_record, seal_record
from kvstore.ticket import TicketBody, decode_body, encode_body

FINGERPRINT, NAME = bytes(range(8)), bytes(range(32))
PARTS = tuple(SegmentDigest(num_bytes=idx, digest=bytes([idx]) * 16) for idx in range(3))
BODY = encode_body(
    TicketBody(
        handoff_id="0" * 32,
        request_id="request",
        attempt=1,
        fingerprint=FINGERPRINT,
        block_tokens=4,
        num_tokens=9,
        last_block_hash=NAME,
        tail_hash=NAME,
        block_digests=(bytes(16), bytes(16)),
        tail_kv=PARTS,
        tail_state=PARTS,
        first_token=1,
        producer="p",
        producer_rank=0,
    )
)
INDEX = encode_index({1: PARTS, 2: PARTS}, "producer", 1)
RECORD = seal_record(INDEX, fingerprint=FINGERPRINT, name=NAME)
PAYLOAD = bytes(range(40))
VALUE = (
    Header(
        fingerprint=FINGERPRINT,
        name=NAME[:8],
        component=Component.KV,
        segment=0,
        num_segments=1,
        num_bytes=len(PAYLOAD),
        digest=payload_digest(PAYLOAD),
        flags=1,
    ).pack()
    + PAYLOAD
)
EXPECTED = Expected(
    fingerprint=FINGERPRINT, name=NAME, component=Component.KV, segment=0, attempt=0
)
STREAM = (
    b"+OK\r\n:42\r\n$-1\r\n$5\r\nhello\r\n-OOM full\r\n$0\r\n\r\n:-7\r\n$300\r\n"
    + bytes(300)
    + b"\r\n"
)
MAX_VALUE = 1 << 12


def read_stream(data: bytes) -> None:
    position, allocated = 0, 0

    def receive(buffers: list[memoryview]) -> int:
        nonlocal position
        count = min(len(buffers[0]), len(data) - position, 97)
        buffers[0][:count] = data[position : position + count]
        position += count
        return count

    def allocate(size: int) -> bytearray:
        nonlocal allocated
        allocated += size
        return bytearray(size)

    reader = ReplyReader(receive, max_value_bytes=MAX_VALUE)
    try:
        for _ in range(len(data) + 1):
            try:
                reader.read(allocate)
            except ReplyError:
                continue
        raise AssertionError("more replies than bytes")
    except ProtocolError:
        assert allocated <= len(data) + MAX_VALUE
        raise


TARGETS: list[tuple[bytes, Callable[[bytes], object], type[Exception]]] = [
    (STREAM, read_stream, ProtocolError),
    (BODY, decode_body, BlockCorrupt),
    (INDEX, decode_index, BlockCorrupt),
    (
        RECORD,
        lambda data: open_record(data, fingerprint=FINGERPRINT, name=NAME, kind="index"),
        BlockCorrupt,
    ),
    (VALUE, lambda data: verify_segment(data, EXPECTED), HeaderError),
]


def damage(generator: random.Random, data: bytes) -> bytes:
    """A few random edits, or random bytes."""
    if generator.random() < 0.1:
        return generator.randbytes(generator.randrange(200))
    value = bytearray(data)
    for _ in range(generator.randrange(1, 5)):
        position = generator.randrange(len(value) + 1)
        match generator.randrange(4):
            case 0 if position < len(value):
                value[position] = generator.randrange(256)
            case 1:
                del value[position : position + generator.randrange(1, 9)]
            case 2:
                value[position:position] = generator.randbytes(generator.randrange(1, 9))
            case _:
                start = generator.randrange(len(data))
                value[position:position] = data[start : start + generator.randrange(1, 40)]
    return bytes(value)


def fuzz(count: int, seed: int) -> None:
    generator, outcomes = random.Random(seed), Counter[tuple[int, str]]()
    for _ in range(count):
        number = generator.randrange(len(TARGETS))
        data, parse, refusal = TARGETS[number]
        damaged = damage(generator, data)
        try:
            parse(damaged)
            outcomes[number, "read"] += 1
        except refusal:  # any other exception fails the test
            outcomes[number, "refused"] += 1
    assert sum(outcomes.values()) == count
    for number, (_, parse, _) in enumerate(TARGETS):
        assert outcomes[number, "refused"] > 0, parse
    # Sealed values and records are read only if the edits cancelled out.
    assert outcomes[3, "read"] + outcomes[4, "read"] <= count // 100


@pytest.mark.medium
def test_damaged_bytes_are_refused_by_name() -> None:
    fuzz(10_000, 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_damaged_inputs_are_refused_by_name() -> None:
    fuzz(1_000_000, 2)
