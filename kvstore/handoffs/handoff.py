"""Hand-offs from the writer's side, and the door through which a reader gets in.

Order of writing: blocks (while the prompt computes), tail, then body and lease in one atomic step;
so a hand-off that can be opened is complete. Order of opening: ticket, attempt, body, tokens, and
only then the lease; what a wrong ticket names is left as it is.

Invariant: an id is a function of the content, so committing twice is harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvstore.backends.base import HandoffKeys, LeaseGrant, LeaseOutcome
from kvstore.digests import combine_digests
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    KvStoreError,
    StaleAttempt,
    TicketInvalid,
)
from kvstore.handoffs.leases import handoff_keys
from kvstore.handoffs.reader import (
    HandoffReader,
    ReaderParts,
    check_attempt,
    raise_attempt,
    require_granted,
)
from kvstore.headers import HEADER_BYTES
from kvstore.keys import TAIL_COMPONENTS, Component, body_key, is_handoff_id, tail_prefix
from kvstore.payloads.freshness import Refreshed
from kvstore.payloads.sealing import PayloadRef, SealedPayload, block_refs
from kvstore.records import open_record, seal_record
from kvstore.ticket import (
    HandoffDraft,
    Ticket,
    TicketBody,
    TokenChain,
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

# Tail segments deleted per component when the body that lists them cannot be read.
_GUESSED_SEGMENTS = 16

logger = logging.getLogger(__name__)


class Handoffs:
    """Commits, opens and aborts hand-offs of one layout. Thread-safe."""

    def __init__(self, parts: ReaderParts, fingerprint: bytes, published: Refreshed) -> None:
        self._parts = parts
        self._leases = parts.leases
        self._payloads = parts.payloads
        self._config = parts.config
        self._counters = parts.counters
        self._fingerprint = fingerprint
        self._published = published
        self._ttl_ms = int(parts.config.handoff_ttl_s * 1000)

    def begin_attempt(self, request_id: str, attempt: int) -> None:
        """Makes older attempts of a request stale.

        A damaged record does not say which attempt was the newest. Whoever finds it refuses itself
        and records the attempt after its own. If that was the newest attempt, the record is above
        all earlier ones and equal to the one that follows: nothing old gets in. If it was an old
        attempt `a`, it and those before it stay out, and the newest one is `a + 1`, or finds
        another number and starts over above it. What remains is an attempt between the two,
        which could commit until then: its ticket reaches nobody but the caller of that attempt,
        and a caller that has moved on drops what an older attempt says. The same holds for a
        record that was evicted. So a damaged record costs an attempt, never an answer.

        Raises:
            StaleAttempt: A newer attempt began already.
            BlockCorrupt: The record was damaged; the next attempt is recorded in its place.
        """
        newest = raise_attempt(self._parts, request_id, attempt)
        if newest > attempt:
            raise StaleAttempt(request_id, attempt, newest)

    def commit(self, draft: HandoffDraft) -> Ticket:
        """Writes the tail, then body and lease in one step. Twice is harmless.

        Raises:
            TicketInvalid: The draft contradicts itself.
            StaleAttempt: A newer attempt of the request exists.
            BlockMissing: A block or a tail segment is no longer in the store; write it again.
            BlockCorrupt: Other bytes are stored under the same name.
        """
        self._check_draft(draft)
        # The id depends on the tail's digest and the tail's headers on the id: digest first.
        nameless = [
            self._payloads.seal(PayloadRef(component=component, name=bytes(16)), payload)
            for component, payload in zip(
                TAIL_COMPONENTS, (draft.tail_kv, draft.tail_state), strict=True
            )
        ]
        digest = combine_digests([payload.digest for payload in nameless])
        handoff_id = derive_handoff_id(draft, self._fingerprint, digest)
        sealed = [
            self._payloads.rename(
                payload,
                PayloadRef(
                    component=payload.ref.component,
                    name=bytes.fromhex(handoff_id),
                    attempt=draft.attempt,
                ),
            )
            for payload in nameless
        ]
        body = self._body(draft, handoff_id, sealed)
        stored = seal_record(
            encode_body(body),
            fingerprint=self._fingerprint,
            name=bytes.fromhex(handoff_id),
            attempt=draft.attempt,
        )
        self.begin_attempt(draft.request_id, draft.attempt)
        self._check_blocks(draft)
        keys = handoff_keys(
            self._fingerprint, handoff_id, [len(payload.segments) for payload in sealed]
        )
        try:
            self._payloads.write(sealed, int(self._config.discard_after_s * 1000))
            reply = self._leases.commit(
                keys,
                stored,
                self._grant(
                    draft.request_id,
                    draft.attempt,
                    lease_s=self._config.claim_ttl_s,
                    num_bytes=draft.block_bytes + sum(payload.num_bytes for payload in sealed),
                ),
            )
            if reply.outcome is LeaseOutcome.INCOMPLETE:
                kind = _tail_kind(keys, reply.part_idx)
                raise BlockMissing(kind, 0, "evicted before the hand-off")
        except KvStoreError:
            self._discard(keys)
            raise
        if reply.outcome is LeaseOutcome.CONFLICT:
            raise BlockCorrupt("body", 0, "conflict", "another body is stored under its name")
        self._counters.add(commits=1)
        return Ticket(
            handoff_id=handoff_id,
            request_id=draft.request_id,
            attempt=draft.attempt,
            fingerprint=self._fingerprint,
            num_tokens=draft.num_tokens,
            num_blocks=len(draft.block_hashes),
            last_block_hash=body.last_block_hash,
            tail_key=tail_prefix(self._fingerprint, handoff_id).decode(),
            tail_digest=tail_digest(body),
            body_digest=body_digest(stored),
            first_token=draft.first_token,
            fencing_token=reply.fencing_token,
            remaining_s=reply.remaining_ms / 1000,
            traceparent=draft.traceparent,
        )

    def open(self, ticket: Ticket, tokens: Sequence[int] | TokenChain, salt: str) -> HandoffReader:
        """Checks ticket, body and tokens, then takes the lease.

        Raises:
            LayoutDiffers, TicketInvalid, StaleAttempt: The ticket is refused.
            BlockMissing: There is no body: never committed, released, reaped or evicted.
            BlockCorrupt: The body is not the one of the ticket, or belongs to other tokens.
            LeaseLost: The lease is gone.
        """
        check_ticket(ticket, fingerprint=self._fingerprint)
        check_attempt(self._parts, ticket.request_id, ticket.attempt)
        body = self._read_body(ticket)
        hashes = check_tokens(body, tokens, salt)
        keys = self._keys(body)
        reply = self._leases.acquire(
            keys,
            self._grant(ticket.request_id, ticket.attempt, lease_s=self._config.lease_s),
            ticket.fencing_token,
        )
        require_granted(reply, ticket.handoff_id)
        self._counters.add(opened=1)
        return HandoffReader(self._parts, body, hashes, keys, reply.fencing_token)

    def abort(self, handoff_id: str) -> bool:
        """Deletes a hand-off whoever holds it; its reader notices. False if there was none."""
        if not is_handoff_id(handoff_id):
            raise TicketInvalid("handoff_id", handoff_id[:64], "32 lower-case hex digits")
        deleted = (
            self._leases.release(self._guessed_keys(handoff_id), None).outcome
            is LeaseOutcome.GRANTED
        )
        if deleted:
            self._counters.add(aborted=1)
        return deleted

    def _discard(self, keys: HandoffKeys) -> None:
        """Takes a failed commit back, which may be half done or done without our knowing."""
        try:
            self._leases.release(keys, None)
        except KvStoreError as error:
            # It dies by its own time to live.
            logger.warning("a failed commit was not taken back: %s", error.cause)

    def _check_blocks(self, draft: HandoffDraft) -> None:
        """All blocks seem to be there and will live as long as the ticket, a minute more or less.

        Those this client published lately only need to be there.
        """
        due = self._published.take_due(block_refs(draft.block_hashes), self._parts.clock())
        if due:
            self._payloads.extend(due, self._ttl_ms)
        present = self._payloads.exist(Component.KV, draft.block_hashes)
        if not all(present):
            raise BlockMissing("kv", present.index(False), "evicted before the hand-off")

    def _check_draft(self, draft: HandoffDraft) -> None:
        num_blocks, rest = divmod(draft.num_tokens, self._config.block_tokens)
        for name, found, wanted in (
            ("block_hashes", len(draft.block_hashes), num_blocks),
            ("block_digests", len(draft.block_digests), num_blocks),
            ("tail_tokens", len(draft.tail_tokens), rest),
        ):
            if found != wanted:
                raise TicketInvalid(name, found, wanted)
        if draft.num_tokens < 1:
            raise TicketInvalid("num_tokens", draft.num_tokens, "at least 1")
        if not 1 <= draft.attempt <= 2**32 - 1:
            raise TicketInvalid("attempt", draft.attempt, "a number from 1")

    def _body(
        self, draft: HandoffDraft, handoff_id: str, sealed: Sequence[SealedPayload]
    ) -> TicketBody:
        last = bytes(draft.block_hashes[-1]) if draft.block_hashes else b""
        return TicketBody(
            handoff_id=handoff_id,
            request_id=draft.request_id,
            attempt=draft.attempt,
            fingerprint=self._fingerprint,
            block_tokens=self._config.block_tokens,
            num_tokens=draft.num_tokens,
            last_block_hash=last,
            tail_hash=tail_hash(last, draft.tail_tokens, draft.salt),
            block_digests=tuple(map(bytes, draft.block_digests)),
            tail_kv=sealed[0].segment_digests(),
            tail_state=sealed[1].segment_digests(),
            first_token=draft.first_token,
            producer=self._config.owner,
            producer_rank=self._config.owner_rank,
        )

    def _read_body(self, ticket: Ticket) -> TicketBody:
        stored = self._payloads.fetch_raw(body_key(ticket.handoff_id))
        if not stored:
            raise BlockMissing("body", 0, "never committed, released, expired or evicted")
        try:
            payload = open_record(
                stored,
                fingerprint=self._fingerprint,
                name=bytes.fromhex(ticket.handoff_id),
                kind="body",
                attempt=ticket.attempt,
            )
            body = decode_body(payload)
        except BlockCorrupt:
            # Nobody can ever open it: take the whole hand-off away.
            self._leases.release(self._guessed_keys(ticket.handoff_id), None)
            self._counters.add(quarantined=1)
            raise
        # A sound body that is not the ticket's may well be somebody's: refused, and left alone.
        check_body(ticket, body, stored, block_tokens=self._config.block_tokens)
        return body

    def _keys(self, body: TicketBody) -> HandoffKeys:
        return handoff_keys(
            body.fingerprint,
            body.handoff_id,
            [len(body.tail_segments(component)) for component in TAIL_COMPONENTS],
        )

    def _guessed_keys(self, handoff_id: str) -> HandoffKeys:
        """All keys of a hand-off whose body may be unreadable: as it says, or a safe guess."""
        stored = self._payloads.fetch_raw(body_key(handoff_id))
        try:
            return self._keys(decode_body(stored[HEADER_BYTES:]))
        except BlockCorrupt:
            return handoff_keys(self._fingerprint, handoff_id, [_GUESSED_SEGMENTS] * 2)

    def _grant(
        self, request_id: str, attempt: int, *, lease_s: float, num_bytes: int = 0
    ) -> LeaseGrant:
        return LeaseGrant(
            owner=self._config.owner,
            request_id=request_id,
            attempt=attempt,
            num_bytes=num_bytes,
            lease_ms=int(lease_s * 1000),
            ttl_ms=self._ttl_ms,
        )


def _tail_kind(keys: HandoffKeys, part_idx: int) -> str:
    component = int(keys.tails[part_idx].rsplit(b":", 3)[1])
    return Component(component).kind
