"""Parsers of what a store or a peer sends, on damaged bytes: no crash, no hang, little memory."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace

import pytest
from google.protobuf.message import DecodeError

from disagg import wire
from disagg.v1 import common_pb2
from kvstore.backends.resp import ProtocolError, ReplyError, ReplyReader
from kvstore.digests import payload_digest
from kvstore.errors import BlockCorrupt, LayoutDiffers, TicketInvalid
from kvstore.headers import Header, HeaderError
from kvstore.keys import Component, tail_prefix
from kvstore.records import SegmentDigest, decode_index, encode_index, open_record, seal_record
from kvstore.ticket import (
    Ticket,
    TicketBody,
    body_digest,
    check_body,
    check_ticket,
    decode_body,
    encode_body,
    tail_digest,
)
from kvstore.verification import Expected, verify_segment

FINGERPRINT, NAME = bytes(range(8)), bytes(range(32))
PARTS = tuple(SegmentDigest(num_bytes=idx, digest=bytes([idx]) * 16) for idx in range(3))
HANDOFF = TicketBody(
    handoff_id="0123456789abcdef" * 2,
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
BODY = encode_body(HANDOFF)
STORED = seal_record(BODY, fingerprint=FINGERPRINT, name=bytes.fromhex(HANDOFF.handoff_id))
TICKET = Ticket(
    handoff_id=HANDOFF.handoff_id,
    request_id=HANDOFF.request_id,
    attempt=HANDOFF.attempt,
    fingerprint=FINGERPRINT,
    num_tokens=HANDOFF.num_tokens,
    num_blocks=2,
    last_block_hash=NAME,
    tail_key=tail_prefix(FINGERPRINT, HANDOFF.handoff_id).decode(),
    tail_digest=tail_digest(HANDOFF),
    body_digest=body_digest(STORED),
    first_token=1,
    fencing_token=3,
    remaining_s=9.5,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)
WIRE_TICKET = wire.ticket_message(TICKET).SerializeToString()
# What is bound neither by the store nor by the body: a wrong lease is refused by the store itself.
UNBOUND = {"fencing_token", "remaining_s", "traceparent"}
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
MAX_MEMORY = 1 << 20
"""Bytes one input may make a parser allocate; all inputs are below 1 KiB."""


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


def open_ticket(ticket: Ticket) -> None:
    """The checks of a reader; a ticket that passes says what the true one says."""
    check_ticket(ticket, fingerprint=FINGERPRINT)
    check_body(ticket, HANDOFF, STORED, block_tokens=4)
    for field in fields(Ticket):
        if field.name not in UNBOUND:
            assert getattr(ticket, field.name) == getattr(TICKET, field.name), field.name


def read_wire_ticket(data: bytes) -> None:
    open_ticket(Ticket(**wire.ticket_fields(common_pb2.KvTicket.FromString(data))))


def read_ticket_field(data: bytes) -> None:
    """Damaged bytes as the value of one field, chosen by them; of the type the wire gives it."""
    name = WIRE_FIELDS[sum(data) % len(WIRE_FIELDS)]
    value: object
    match getattr(TICKET, name):
        case bytes():
            value = data
        case str():
            value = data.decode("utf-8", "replace")
        case float():
            value = int.from_bytes(data[:12], "little", signed=True) / 1e9
        case _:
            value = int.from_bytes(data[:8], "little")
    # mypy: replace() has no way to say that a name and its value belong together.
    open_ticket(replace(TICKET, **{name: value}))  # type: ignore[arg-type]


WIRE_FIELDS = [field.name for field in fields(Ticket)]
Refusals = tuple[type[Exception], ...]
TARGETS: dict[str, tuple[bytes, Callable[[bytes], object], Refusals]] = {
    "reply": (STREAM, read_stream, (ProtocolError,)),
    "body": (BODY, decode_body, (BlockCorrupt,)),
    "index": (INDEX, decode_index, (BlockCorrupt,)),
    "record": (
        RECORD,
        lambda data: open_record(data, fingerprint=FINGERPRINT, name=NAME, kind="index"),
        (BlockCorrupt,),
    ),
    "header": (VALUE, lambda data: verify_segment(data, EXPECTED), (HeaderError,)),
    "wire_ticket": (
        WIRE_TICKET,
        read_wire_ticket,
        (DecodeError, LayoutDiffers, TicketInvalid, BlockCorrupt),
    ),
    "check_ticket": (
        HANDOFF.handoff_id.encode(),
        read_ticket_field,
        (LayoutDiffers, TicketInvalid, BlockCorrupt),
    ),
}
# Largest share of inputs that may be read. Sealed values and records are read only if the edits
# cancelled out; a ticket also if they hit what nothing binds.
MAX_READ = {"record": 0.01, "header": 0.01, "wire_ticket": 0.3, "check_ticket": 0.3}


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


def parse_within(parse: Callable[[bytes], object], data: bytes, refusals: Refusals) -> int:
    """Peak bytes that Python allocates for one input."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with suppress(*refusals):
        parse(data)
    return tracemalloc.get_traced_memory()[1] - before


def fuzz(name: str, count: int, seed: int) -> None:
    data, parse, refusals = TARGETS[name]
    generator, outcomes = random.Random(seed), Counter[str]()
    for _ in range(count):
        damaged = damage(generator, data)
        try:
            parse(damaged)
            outcomes["read"] += 1
        except refusals as error:  # any other exception fails the test
            outcomes[type(error).__name__] += 1
    assert outcomes.total() == count
    assert {kind.__name__ for kind in refusals} <= set(outcomes), outcomes
    assert outcomes["read"] <= MAX_READ.get(name, 1) * count, outcomes


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_are_refused_by_name(name: str) -> None:
    fuzz(name, 2_500, 1)


def fuzz_memory(name: str, count: int, seed: int) -> None:
    data, parse, refusals = TARGETS[name]
    generator = random.Random(seed)
    tracemalloc.start()
    try:
        for _ in range(count):
            damaged = damage(generator, data)
            used = parse_within(parse, damaged, refusals)
            assert used <= MAX_MEMORY, (used, damaged)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_take_little_memory(name: str) -> None:
    fuzz_memory(name, 300, 3)


def test_the_measure_of_memory_sees_what_a_parser_takes() -> None:
    tracemalloc.start()
    try:
        assert parse_within(lambda _: bytearray(MAX_MEMORY + 1), b"", ()) > MAX_MEMORY
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_hundred_thousand_damaged_inputs_take_little_memory(name: str) -> None:
    fuzz_memory(name, 100_000, 4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_million_damaged_inputs_are_refused_by_name(name: str) -> None:
    fuzz(name, 1_000_000, 2)
