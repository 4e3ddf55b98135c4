"""The ticket, its stored body, and what must hold before a byte is trusted: pure functions.

A ticket travels from prefill through the balancer to decode; the body stays in the store and lists
the digest of every payload. The ticket binds the body by a SHA-256, the body binds the tokens by
their chain hash and the payloads by their digests. Decode recomputes the chain from its own tokens,
so state of other tokens is refused even if every byte of it is intact.

Knows no socket, no thread and no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import msgpack

from disagg import block_hash
from kvstore.buffers import Buffer
from kvstore.digests import DIGEST_BYTES, combine_digests
from kvstore.errors import BlockCorrupt, LayoutDiffers, TicketInvalid
from kvstore.headers import MAX_SEGMENTS
from kvstore.keys import HASH_BYTES, TAIL_COMPONENTS, Component, is_handoff_id, tail_prefix
from kvstore.records import SegmentDigest, decode_segment, unpack_array

BODY_VERSION = 1
MAX_BLOCKS = 1 << 20
MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Proof and address of a hand-off; field by field the wire message `KvTicket`."""

    handoff_id: str
    request_id: str
    attempt: int
    fingerprint: bytes
    num_tokens: int
    num_blocks: int
    last_block_hash: bytes
    tail_key: str
    tail_digest: bytes
    body_digest: bytes
    first_token: int
    fencing_token: int
    remaining_s: float
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChain:
    """Names of a sequence of tokens; whoever knows the tokens early computes them early.

    Attributes:
        num_tokens: Tokens in all.
        block_tokens: Tokens per block.
        hashes: Names of all full blocks.
        tail: Name of the tokens after the last full block.
    """

    num_tokens: int
    block_tokens: int
    hashes: tuple[bytes, ...]
    tail: bytes

    @classmethod
    def of(cls, token_ids: Sequence[int], block_tokens: int, salt: str = "") -> Self:
        """Hashes a sequence under a tenant's salt.

        Raises:
            TicketInvalid: A token id is out of range.
        """
        try:
            hashes = block_hash.chain(token_ids, block_tokens, salt=salt)
        except ValueError as error:
            raise TicketInvalid("token_ids", str(error), "token ids in 0..2^32-1") from None
        last = hashes[-1] if hashes else b""
        return cls(
            num_tokens=len(token_ids),
            block_tokens=block_tokens,
            hashes=tuple(hashes),
            tail=tail_hash(last, token_ids[len(hashes) * block_tokens :], salt),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffDraft:
    """What prefill hands over, before it has a ticket.

    Attributes:
        request_id: Request this state belongs to.
        attempt: Attempt of the request, from 1.
        num_tokens: Tokens whose KV the state holds.
        block_hashes: Chain hashes of all full blocks.
        block_digests: What `put_block` returned for each of them.
        tail_tokens: Token ids after the last full block; names the tail.
        tail_kv: Entries of the unfinished block; may be empty.
        tail_state: Windows and compressor state at the end.
        first_token: First sampled token.
        salt: Tenant salt of the chain.
        traceparent: W3C trace context; may be empty.
        token_ids: Tokens of the full blocks, for KV events alone; may be empty.
        block_bytes: Bytes of the blocks that were written for this hand-off; what was stored before
            it is not its own. For the audit and the pressure on the store.
    """

    request_id: str
    attempt: int
    num_tokens: int
    block_hashes: Sequence[bytes]
    block_digests: Sequence[bytes]
    tail_tokens: Sequence[int]
    tail_kv: Buffer
    tail_state: Buffer
    first_token: int
    salt: str = ""
    traceparent: str = ""
    token_ids: Sequence[int] = ()
    block_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketBody:
    """What the store holds under the ticket. Written last, in one step with the lease."""

    handoff_id: str
    request_id: str
    attempt: int
    fingerprint: bytes
    block_tokens: int
    num_tokens: int
    last_block_hash: bytes
    tail_hash: bytes
    block_digests: tuple[bytes, ...]
    tail_kv: tuple[SegmentDigest, ...]
    tail_state: tuple[SegmentDigest, ...]
    first_token: int
    producer: str
    producer_rank: int
    version: int = field(default=BODY_VERSION)

    def tail_segments(self, component: Component) -> tuple[SegmentDigest, ...]:
        """Segments of a tail component in order."""
        return self.tail_kv if component is Component.TAIL_KV else self.tail_state


def tail_hash(parent: bytes, tail_tokens: Sequence[int], salt: str) -> bytes:
    """Name of the tokens after the last full block, chained to it like a block.

    Raises:
        TicketInvalid: A token id is out of range.
    """
    try:
        return block_hash.extend(parent or block_hash.ROOT, tail_tokens, salt=salt)
    except ValueError as error:
        raise TicketInvalid("token_ids", str(error), "token ids in 0..2^32-1") from None


def tail_digest(body: TicketBody) -> bytes:
    """Digest of the whole tail: over the digests of its components in ascending order."""
    return combine_digests(
        [
            combine_digests([segment.digest for segment in body.tail_segments(component)])
            for component in TAIL_COMPONENTS
        ]
    )


def body_digest(stored: Buffer) -> bytes:
    """SHA-256 over the body as stored, header included."""
    return hashlib.sha256(stored).digest()


def derive_handoff_id(draft: HandoffDraft, fingerprint: bytes, tail: bytes) -> str:
    """Id of a hand-off: a function of its content, so that doing it twice is harmless.

    Args:
        draft: The hand-off.
        fingerprint: Layout fingerprint of the writer.
        tail: Digest over both tail payloads.
    """
    digest = hashlib.sha256(b"disagg hand-off 1")
    for part in (
        draft.request_id.encode("utf-8", "surrogatepass"),
        str(draft.attempt).encode(),
        fingerprint,
        str(draft.num_tokens).encode(),
        draft.block_hashes[-1] if draft.block_hashes else b"",
        b"".join(draft.block_digests),
        str(draft.first_token).encode(),
        tail,
    ):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def encode_body(body: TicketBody) -> bytes:
    """The payload of a stored body (MessagePack array, fields in a fixed order)."""
    packed = msgpack.packb(
        [
            body.version,
            body.handoff_id,
            body.request_id,
            body.attempt,
            body.fingerprint,
            body.block_tokens,
            body.num_tokens,
            body.last_block_hash,
            body.tail_hash,
            b"".join(body.block_digests),
            [[segment.num_bytes, segment.digest] for segment in body.tail_kv],
            [[segment.num_bytes, segment.digest] for segment in body.tail_state],
            body.first_token,
            body.producer,
            body.producer_rank,
        ],
        use_bin_type=True,
    )
    return bytes(packed)


def decode_body(payload: Buffer) -> TicketBody:
    """Reads the payload of a stored body, trusting nothing.

    Raises:
        BlockCorrupt: Not a body of this version, or a field of the wrong type or size.
    """
    fields = unpack_array(payload, 15, "body")
    reader = _Fields(fields)
    version = reader.integer(0, 1, BODY_VERSION)
    digests = reader.raw(9, None)
    if len(digests) % DIGEST_BYTES or len(digests) // DIGEST_BYTES > MAX_BLOCKS:
        raise BlockCorrupt("body", 0, "form", f"{len(digests)} bytes of block digests")
    return TicketBody(
        version=version,
        handoff_id=reader.text(1),
        request_id=reader.text(2),
        attempt=reader.integer(3, 1, 2**32 - 1),
        fingerprint=reader.raw(4, 8),
        block_tokens=reader.integer(5, 1, 2**31),
        num_tokens=reader.integer(6, 1, 2**40),
        last_block_hash=reader.raw(7, None),
        tail_hash=reader.raw(8, HASH_BYTES),
        block_digests=tuple(
            digests[start : start + DIGEST_BYTES] for start in range(0, len(digests), DIGEST_BYTES)
        ),
        tail_kv=reader.segments(10),
        tail_state=reader.segments(11),
        first_token=reader.integer(12, 0, 2**32 - 1),
        producer=reader.text(13),
        producer_rank=reader.integer(14, 0, 2**16),
    )


class _Fields:
    """Typed access to the fields of a decoded array."""

    def __init__(self, fields: list[object]) -> None:
        self._fields = fields

    def integer(self, idx: int, low: int, high: int) -> int:
        value = self._fields[idx]
        if type(value) is not int or not low <= value <= high:
            raise BlockCorrupt("body", 0, "form", f"field {idx} is not an integer {low}..{high}")
        return value

    def text(self, idx: int) -> str:
        value = self._fields[idx]
        if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
            raise BlockCorrupt("body", 0, "form", f"field {idx} is not a short text")
        return value

    def raw(self, idx: int, num_bytes: int | None) -> bytes:
        value = self._fields[idx]
        if not isinstance(value, bytes) or num_bytes not in (None, len(value)):
            raise BlockCorrupt("body", 0, "form", f"field {idx} is not {num_bytes} bytes")
        return value

    def segments(self, idx: int) -> tuple[SegmentDigest, ...]:
        value = self._fields[idx]
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_SEGMENTS:
            raise BlockCorrupt("body", 0, "form", f"field {idx} is not a list of segments")
        return tuple(decode_segment("body", item) for item in value)


def check_ticket(ticket: Ticket, *, fingerprint: bytes) -> None:
    """What can be refused from the ticket alone.

    Raises:
        LayoutDiffers: The writer stores KV in another form.
        TicketInvalid: A field is malformed.
    """
    if ticket.fingerprint != fingerprint:
        raise LayoutDiffers("fingerprint", ticket.fingerprint.hex(), fingerprint.hex())
    if not is_handoff_id(ticket.handoff_id):
        raise TicketInvalid("handoff_id", ticket.handoff_id[:64], "32 lower-case hex digits")
    if not 1 <= ticket.attempt <= 2**32 - 1:
        raise TicketInvalid("attempt", ticket.attempt, "a number from 1")
    prefix = tail_prefix(ticket.fingerprint, ticket.handoff_id).decode()
    if ticket.tail_key != prefix:
        raise TicketInvalid("tail_key", ticket.tail_key[:128], prefix)


def check_body(ticket: Ticket, body: TicketBody, stored: Buffer, *, block_tokens: int) -> None:
    """Whether a body is the one the ticket names, field by field.

    Raises:
        BlockCorrupt: The stored bytes are not the ones the ticket was made for.
        LayoutDiffers: Another block size.
        TicketInvalid: Ticket and body contradict each other.
    """
    if body_digest(stored) != ticket.body_digest:
        raise BlockCorrupt("body", 0, "digest", "the body is not the one of the ticket")
    if body.block_tokens != block_tokens:
        raise LayoutDiffers("block_tokens", str(body.block_tokens), str(block_tokens))
    for name, found, wanted in (
        ("handoff_id", ticket.handoff_id, body.handoff_id),
        ("request_id", ticket.request_id, body.request_id),
        ("attempt", ticket.attempt, body.attempt),
        ("fingerprint", ticket.fingerprint, body.fingerprint),
        ("num_tokens", ticket.num_tokens, body.num_tokens),
        ("num_blocks", ticket.num_blocks, len(body.block_digests)),
        ("last_block_hash", ticket.last_block_hash, body.last_block_hash),
        ("tail_digest", ticket.tail_digest, tail_digest(body)),
        ("first_token", ticket.first_token, body.first_token),
    ):
        if found != wanted:
            raise TicketInvalid(name, _shown(found), _shown(wanted))
    if len(body.block_digests) != body.num_tokens // block_tokens:
        raise TicketInvalid("num_blocks", len(body.block_digests), body.num_tokens // block_tokens)


def check_tokens(
    body: TicketBody, tokens: Sequence[int] | TokenChain, salt: str
) -> tuple[bytes, ...]:
    """Chain hashes of the caller's tokens, which must be the ones the body was made for.

    Returns:
        The names of all full blocks.

    Raises:
        TicketInvalid: Another number of tokens, or ids that are not token ids.
        BlockCorrupt: The state belongs to other tokens (reason `chain`).
    """
    num_tokens = tokens.num_tokens if isinstance(tokens, TokenChain) else len(tokens)
    if num_tokens != body.num_tokens:
        raise TicketInvalid("num_tokens", body.num_tokens, num_tokens)
    if not isinstance(tokens, TokenChain):
        tokens = TokenChain.of(tokens, body.block_tokens, salt)
    if tokens.block_tokens != body.block_tokens:
        raise TicketInvalid("block_tokens", body.block_tokens, tokens.block_tokens)
    if (tokens.hashes[-1] if tokens.hashes else b"") != body.last_block_hash:
        raise BlockCorrupt("body", 0, "chain", "the blocks belong to other tokens")
    if tokens.tail != body.tail_hash:
        raise BlockCorrupt("body", 0, "chain", "the tail belongs to other tokens")
    return tokens.hashes


def _shown(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
