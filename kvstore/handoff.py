"""Both ends of a hand-off: commit on the writer's side, open, fetch and release on the reader's.

Order of writing: blocks (while the prompt computes), tail, then body and lease in one atomic step;
so a hand-off that can be opened is complete. Order of reading: ticket, body, tokens, lease, blocks,
tail, lease and attempt again. What was read under a lease that lapsed, or for an attempt that is no
longer the newest, is discarded.

Invariant: `fetch` returns state proven to be that of exactly the caller's tokens, or raises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kvstore.backends.base import (
    Allocate,
    HandoffKeys,
    LeaseGrant,
    LeaseOutcome,
    LeaseReply,
    LeaseStore,
)
from kvstore.config import KvStoreConfig
from kvstore.errors import (
    BlockCorrupt,
    BlockMissing,
    KvStoreError,
    LeaseLost,
    StaleAttempt,
    TicketInvalid,
)
from kvstore.keys import (
    TAIL_COMPONENTS,
    Component,
    attempt_key,
    body_key,
    combine_digests,
    is_handoff_id,
    tail_prefix,
)
from kvstore.leases import handoff_keys
from kvstore.payloads import PayloadRef, Payloads, ReadRequest, SealedPayload
from kvstore.statistics import Counters, counted
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
    open_record,
    seal_record,
    tail_digest,
    tail_hash,
)

logger = logging.getLogger(__name__)

_BLOCKS_PER_READ = 64
# Tail segments deleted per component when the body that lists them cannot be read.
_GUESSED_SEGMENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedState:
    """State of a sequence, verified. Buffers are owned by this object.

    Attributes:
        num_tokens: Tokens whose KV this is.
        blocks: One payload per full block.
        tail_kv: Entries of the unfinished block; may be empty.
        tail_state: Windows and compressor state at the end.
        num_bytes: Payload bytes of all of it.
    """

    num_tokens: int
    blocks: tuple[memoryview, ...]
    tail_kv: memoryview
    tail_state: memoryview
    num_bytes: int


class Handoffs:
    """Commits, opens and aborts hand-offs of one layout. Thread-safe."""

    def __init__(
        self,
        leases: LeaseStore,
        payloads: Payloads,
        config: KvStoreConfig,
        fingerprint: bytes,
        clock: Callable[[], float],
        counters: Counters,
    ) -> None:
        self.leases = leases
        self.payloads = payloads
        self.config = config
        self.fingerprint = fingerprint
        self.clock = clock
        self.counters = counters
        self._ttl_ms = int(config.handoff_ttl_s * 1000)

    def begin_attempt(self, request_id: str, attempt: int) -> None:
        """Makes older attempts of a request stale.

        Raises:
            StaleAttempt: A newer attempt began already.
        """
        # Twice the life of a ticket: as long as an old one can be opened, it is known to be old.
        newest = self.leases.fence(attempt_key(request_id), attempt, 2 * self._ttl_ms)
        if newest > attempt:
            raise StaleAttempt(request_id, attempt, newest)

    def check_attempt(self, request_id: str, attempt: int) -> None:
        """Whether an attempt is the newest one.

        Raises:
            StaleAttempt: It is not, or the store no longer knows (restarted or evicted).
        """
        newest = self.leases.fence(attempt_key(request_id), 0, 0)
        if newest != attempt:
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
            self.payloads.seal(PayloadRef(component=component, name=bytes(16)), payload)
            for component, payload in zip(
                TAIL_COMPONENTS, (draft.tail_kv, draft.tail_state), strict=True
            )
        ]
        digest = combine_digests([payload.digest for payload in nameless])
        handoff_id = derive_handoff_id(draft, self.fingerprint, digest)
        sealed = [
            self.payloads.rename(
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
            fingerprint=self.fingerprint,
            name=bytes.fromhex(handoff_id),
            attempt=draft.attempt,
        )
        self.begin_attempt(draft.request_id, draft.attempt)
        present = self.payloads.extend(block_refs(draft.block_hashes), self._ttl_ms)
        if not all(present):
            raise BlockMissing("kv", present.index(False), "evicted before the hand-off")
        self.payloads.write(sealed, int(self.config.discard_after_s * 1000))
        keys = handoff_keys(
            self.fingerprint, handoff_id, [len(payload.segments) for payload in sealed]
        )
        reply = self.leases.commit(
            keys,
            stored,
            self._grant(
                draft.request_id,
                draft.attempt,
                lease_s=self.config.claim_ttl_s,
                num_bytes=sum(payload.num_bytes for payload in sealed),
            ),
        )
        if reply.outcome is LeaseOutcome.INCOMPLETE:
            raise BlockMissing(_tail_kind(keys, reply.part_idx), 0, "evicted before the hand-off")
        if reply.outcome is LeaseOutcome.CONFLICT:
            raise BlockCorrupt("body", 0, "conflict", "another body is stored under its name")
        self.counters.add(commits=1)
        return Ticket(
            handoff_id=handoff_id,
            request_id=draft.request_id,
            attempt=draft.attempt,
            fingerprint=self.fingerprint,
            num_tokens=draft.num_tokens,
            num_blocks=len(draft.block_hashes),
            last_block_hash=body.last_block_hash,
            tail_key=tail_prefix(self.fingerprint, handoff_id).decode(),
            tail_digest=tail_digest(body),
            body_digest=body_digest(stored),
            first_token=draft.first_token,
            fencing_token=reply.fencing_token,
            remaining_s=reply.remaining_ms / 1000,
            traceparent=draft.traceparent,
        )

    def open(self, ticket: Ticket, token_ids: Sequence[int], salt: str) -> HandoffReader:
        """Checks ticket, body and tokens, then takes the lease.

        Raises:
            LayoutDiffers, TicketInvalid, StaleAttempt: The ticket is refused.
            BlockMissing: There is no body: never committed, released, reaped or evicted.
            BlockCorrupt: The body is not the one of the ticket, or belongs to other tokens.
            LeaseLost: The lease is gone.
        """
        check_ticket(ticket, fingerprint=self.fingerprint)
        self.check_attempt(ticket.request_id, ticket.attempt)
        body = self._read_body(ticket)
        hashes = check_tokens(body, token_ids, salt)
        keys = self._keys(body)
        reply = self.leases.acquire(
            keys,
            self._grant(ticket.request_id, ticket.attempt, lease_s=self.config.lease_s),
            ticket.fencing_token,
        )
        _require_granted(reply, ticket.handoff_id)
        self.counters.add(opened=1)
        return HandoffReader(self, ticket, body, hashes, keys, reply.fencing_token)

    def abort(self, handoff_id: str) -> bool:
        """Deletes a hand-off whoever holds it; its reader notices. False if there was none."""
        if not is_handoff_id(handoff_id):
            raise TicketInvalid("handoff_id", handoff_id[:64], "32 lower-case hex digits")
        deleted = (
            self.leases.release(self._guessed_keys(handoff_id), None).outcome
            is LeaseOutcome.GRANTED
        )
        if deleted:
            self.counters.add(aborted=1)
        return deleted

    def _check_draft(self, draft: HandoffDraft) -> None:
        num_blocks, rest = divmod(draft.num_tokens, self.config.block_tokens)
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
            fingerprint=self.fingerprint,
            block_tokens=self.config.block_tokens,
            num_tokens=draft.num_tokens,
            last_block_hash=last,
            tail_hash=tail_hash(last, draft.tail_tokens, draft.salt),
            block_digests=tuple(map(bytes, draft.block_digests)),
            tail_kv=sealed[0].segment_digests(),
            tail_state=sealed[1].segment_digests(),
            first_token=draft.first_token,
            producer=self.config.owner,
            producer_rank=self.config.owner_rank,
        )

    def _read_body(self, ticket: Ticket) -> TicketBody:
        stored = self.payloads.fetch_raw(body_key(ticket.handoff_id))
        if not stored:
            raise BlockMissing("body", 0, "never committed, released, expired or evicted")
        try:
            payload = open_record(
                stored,
                fingerprint=self.fingerprint,
                name=bytes.fromhex(ticket.handoff_id),
                kind="body",
                attempt=ticket.attempt,
            )
            body = decode_body(payload)
            check_body(ticket, body, stored, block_tokens=self.config.block_tokens)
        except BlockCorrupt:
            # Nobody can ever open it: take the whole hand-off away.
            self.leases.release(self._guessed_keys(ticket.handoff_id), None)
            self.counters.add(quarantined=1)
            raise
        return body

    def _keys(self, body: TicketBody) -> HandoffKeys:
        return handoff_keys(
            self.fingerprint,
            body.handoff_id,
            [len(body.tail_segments(component)) for component in TAIL_COMPONENTS],
        )

    def _guessed_keys(self, handoff_id: str) -> HandoffKeys:
        """All keys of a hand-off whose body may be unreadable: as it says, or a safe guess."""
        stored = self.payloads.fetch_raw(body_key(handoff_id))
        try:
            return self._keys(decode_body(stored[64:]))
        except BlockCorrupt:
            return handoff_keys(self.fingerprint, handoff_id, [_GUESSED_SEGMENTS] * 2)

    def _grant(
        self, request_id: str, attempt: int, *, lease_s: float, num_bytes: int = 0
    ) -> LeaseGrant:
        return LeaseGrant(
            owner=self.config.owner,
            request_id=request_id,
            attempt=attempt,
            num_bytes=num_bytes,
            lease_ms=int(lease_s * 1000),
            ttl_ms=self._ttl_ms,
        )


class HandoffReader:
    """A hand-off whose lease we hold: a context manager that releases it.

    Not thread-safe, except `release`, which may come from another thread than `fetch`.
    """

    def __init__(
        self,
        handoffs: Handoffs,
        ticket: Ticket,
        body: TicketBody,
        hashes: Sequence[bytes],
        keys: HandoffKeys,
        fencing_token: int,
    ) -> None:
        self._handoffs = handoffs
        self._ticket = ticket
        self._body = body
        self._hashes = hashes
        self._keys = keys
        self._fencing_token = fencing_token
        self._renewed_at = handoffs.clock()
        self._lock = threading.Lock()
        self._is_released = False

    @property
    def body(self) -> TicketBody:
        """The verified ticket body."""
        return self._body

    def fetch(self, allocate: Allocate = bytearray) -> FetchedState:
        """Reads and verifies everything; renews the lease meanwhile and checks it at the end.

        Args:
            allocate: Memory for each stored value (64 bytes of header, then the payload).

        Raises:
            BlockMissing, BlockCorrupt: A payload is gone or wrong (and quarantined).
            LeaseLost, StaleAttempt: What was read is discarded.
        """
        with counted(self._handoffs.counters):
            requests = [
                ReadRequest(ref=ref, digest=digest)
                for ref, digest in zip(
                    block_refs(self._hashes), self._body.block_digests, strict=True
                )
            ]
            blocks: list[memoryview] = []
            for start in range(0, len(requests), _BLOCKS_PER_READ):
                stop = start + _BLOCKS_PER_READ
                blocks += self._handoffs.payloads.read(requests[start:stop], allocate)
                self._renew_if_due()
            tail_kv, tail_state = self._handoffs.payloads.read(
                [self._tail_request(component) for component in TAIL_COMPONENTS], allocate
            )
            self.renew()
            self._handoffs.check_attempt(self._ticket.request_id, self._ticket.attempt)
        self._handoffs.counters.add(fetched=1)
        return FetchedState(
            num_tokens=self._body.num_tokens,
            blocks=tuple(blocks),
            tail_kv=tail_kv,
            tail_state=tail_state,
            num_bytes=sum(map(len, blocks)) + len(tail_kv) + len(tail_state),
        )

    def renew(self) -> None:
        """Lengthens the lease.

        Raises:
            LeaseLost: It lapsed, was taken over, or the hand-off is gone.
        """
        lease_ms = int(self._handoffs.config.lease_s * 1000)
        reply = self._handoffs.leases.renew(self._keys, self._fencing_token, lease_ms)
        _require_granted(reply, self._body.handoff_id)
        self._renewed_at = self._handoffs.clock()

    def release(self) -> bool:
        """Ends the hand-off: deletes body, lease and tail; its blocks join the cache class.

        Idempotent and safe in clean-up: a store that cannot be reached is counted and logged, the
        lease then ends by itself.

        Returns:
            Whether this call deleted the hand-off.
        """
        with self._lock:
            if self._is_released:
                return False
            self._is_released = True
        handoffs = self._handoffs
        try:
            reply = handoffs.leases.release(self._keys, self._fencing_token)
            handoffs.payloads.extend(
                block_refs(self._hashes), int(handoffs.config.cache_ttl_s * 1000)
            )
        except KvStoreError as error:
            handoffs.counters.failed(error)
            logger.warning("release of hand-off %s: %s", self._body.handoff_id, error)
            return False
        if reply.outcome is LeaseOutcome.GRANTED:
            handoffs.counters.add(released=1)
        return reply.outcome is LeaseOutcome.GRANTED

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _renew_if_due(self) -> None:
        if self._handoffs.clock() - self._renewed_at > self._handoffs.config.lease_s / 3:
            self.renew()

    def _tail_request(self, component: Component) -> ReadRequest:
        return ReadRequest(
            ref=PayloadRef(
                component=component,
                name=bytes.fromhex(self._body.handoff_id),
                attempt=self._body.attempt,
            ),
            segments=self._body.tail_segments(component),
        )


def block_refs(hashes: Sequence[bytes], component: Component = Component.KV) -> list[PayloadRef]:
    """References to a component of the blocks of a chain."""
    return [
        PayloadRef(component=component, name=name, index=idx) for idx, name in enumerate(hashes)
    ]


def _require_granted(reply: LeaseReply, handoff_id: str) -> None:
    if reply.outcome is not LeaseOutcome.GRANTED:
        raise LeaseLost(handoff_id, reply.outcome.value)


def _tail_kind(keys: HandoffKeys, part_idx: int) -> str:
    component = int(keys.tails[part_idx].rsplit(b":", 3)[1])
    return Component(component).kind
